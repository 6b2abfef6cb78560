package journal

import "fmt"

// ofSilence explains a machine that got something and is not heard of since.
func (j *Journal) ofSilence(m *machine, b *record, now int64) *Cause {
	waits := &j.options.Waits
	quiet := now - max(b.moved, b.end)
	st := b.last(b.at)
	if st == nil {
		return nil
	}
	file, from := quote(st.text), peer(st.from)
	since, going := b.goes(b.at)
	var c *Cause
	switch b.at {
	case Loader:
		switch {
		case going && now-since >= int64(waits.Start):
			c = likely(LoaderStalled, "The transfer of %s from %s goes on for %s.", file, from, seconds(now-since))
		case !going && st.result == OK && quiet >= int64(waits.Start):
			if why := m.mismatch(st.text, true); why != "" {
				return likely(WrongArchitecture, "%s was served whole, and nothing was heard since: %s.", file, why)
			}
			c = likely(LoaderDidNotStart, "%s was served whole by %s, and nothing was heard since%s.",
				file, from, m.archNote())
		}
	case Script:
		if !going && st.result == OK && quiet >= int64(waits.Script) {
			c = likely(ScriptNotFollowed, "The script %s was served by %s, and the machine asked for no kernel since.",
				file, from)
		}
	case Kernel, Initramfs:
		if !going && st.result == OK && quiet >= int64(waits.Kernel) && b.kernel {
			c = kernelSilent(m, b, file)
		}
	case OSDHCP, Syslog, Metadata:
		if !going && quiet >= int64(waits.System) && b.kernel {
			c = likely(SystemSilent, "The system runs since %s, and no agent asked for work.", clock(st.begin))
		}
	case Agent:
		return j.ofAgent(b, now)
	}
	if c == nil {
		return nil
	}
	if n, first := j.scene.held(m, b.at, b.moved, false); n >= crowd {
		c = likely(BackendDown, "%d machines wait at this step since %s, and none got past it; the last thing served was "+
			"%s by %s.", n, clock(first), file, from)
		c.Remedy = fmt.Sprintf("Look at the server and the files of this step (%s) rather than at the machines.", b.at)
	}
	return c
}

func kernelSilent(m *machine, b *record, file string) *Cause {
	if st := b.last(Kernel); st != nil {
		if why := m.mismatch(st.text, true); why != "" {
			return likely(WrongArchitecture, "%s was served whole, and nothing was heard since: %s.", quote(st.text), why)
		}
	}
	c := likely(KernelSilent, "%s was served whole, and nothing was heard since.", file)
	if b.last(Initramfs) == nil {
		c.Text += " No initramfs was asked for."
	}
	return c
}

// ofAgent explains an agent that is connected and gets nothing to do.
func (j *Journal) ofAgent(b *record, now int64) *Cause {
	system := int64(j.options.Waits.System)
	switch {
	case b.short >= shortStreams:
		return likely(AgentRefused, "The agent connected %d times, and each connection ended within moments.", b.short)
	case b.polls > 0 && now-b.polls >= system && now-b.end < system:
		return likely(NoWorkflow, "The agent asks for work since %s and has reported nothing.", clock(b.polls))
	default:
		return nil
	}
}

// last is the last step of a kind in the present attempt; nil if there is none.
func (b *record) last(s Step) *step {
	for i := len(b.steps) - 1; i >= b.attempt; i-- {
		if b.steps[i].step == s {
			return &b.steps[i]
		}
	}
	return nil
}
