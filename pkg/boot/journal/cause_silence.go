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
			c = likely(LoaderStalled, "Look for loss and for a smaller MTU on the way (try a TFTP block size of 1024), and for a "+
				"firewall that closes high UDP ports.", "The transfer of %s from %s goes on for %s.", file, from, seconds(now-since))
		case !going && st.result == OK && quiet >= int64(waits.Start):
			if why := m.mismatch(st.text, true); why != "" {
				return likely(WrongArchitecture, wrongArchRemedy, "%s was served whole, and nothing was heard since: %s.", file, why)
			}
			c = likely(LoaderDidNotStart, "Switch Secure Boot off or have the loader signed; see whether the loader is made for "+
				"this machine's architecture; look at its screen.", "%s was served whole by %s, and nothing was heard since%s.",
				file, from, m.archNote())
		}
	case Script:
		if !going && st.result == OK && quiet >= int64(waits.Script) {
			c = likely(ScriptNotFollowed, "See whether the URLs in the script are this service's address, and whether the machine "+
				"trusts their certificate.", "The script %s was served by %s, and the machine asked for no kernel since.", file, from)
		}
	case Kernel, Initramfs:
		if !going && st.result == OK && quiet >= int64(waits.Kernel) && b.kernel {
			c = j.kernelSilent(m, b, file)
		}
	case OSDHCP, Syslog, Metadata:
		if !going && quiet >= int64(waits.System) && b.kernel {
			c = likely(SystemSilent, "Look at the machine's console: whether its services start, and whether they know the address of "+
				"metadata and Tink Server.", "The system runs since %s, and no agent asked for work.", clock(st.begin))
		}
	case Agent:
		return j.ofAgent(b, now)
	}
	if c == nil {
		return nil
	}
	if n, first := j.scene.held(m, b.at, b.moved, false); n >= crowd {
		return likely(BackendDown, fmt.Sprintf("Look at the server and the files of this step (%s) rather than at the machines.", b.at),
			"%d machines wait at this step since %s, and none got past it; the last thing served was %s by %s.", n, clock(first), file, from)
	}
	return c
}

func (j *Journal) kernelSilent(m *machine, b *record, file string) *Cause {
	if st := b.last(Kernel); st != nil {
		if why := m.mismatch(st.text, true); why != "" {
			return likely(WrongArchitecture, wrongArchRemedy, "%s was served whole, and nothing was heard since: %s.", quote(st.text), why)
		}
	}
	missing := ""
	if b.last(Initramfs) == nil {
		missing = " No initramfs was asked for."
	}
	return likely(KernelSilent, "Look at the machine's console (console= in the kernel's arguments), at the driver of its NIC, and "+
		"whether another interface asks for the system's address.", "%s was served whole, and nothing was heard since.%s", file, missing)
}

// ofAgent explains an agent that is connected and gets nothing to do.
func (j *Journal) ofAgent(b *record, now int64) *Cause {
	remedy := "Look whether a Workflow names this machine's Hardware object, and whether the agent's worker ID is the MAC in it."
	if b.short >= shortStreams {
		return likely(AgentRefused, remedy, "The agent connected %d times, and each connection ended within moments.", b.short)
	}
	if b.polls > 0 && now-b.polls >= int64(j.options.Waits.System) && now-b.end < int64(j.options.Waits.System) {
		return likely(NoWorkflow, remedy, "The agent asks for work since %s and has reported nothing.", clock(b.polls))
	}
	return nil
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
