package journey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// event takes what the wire shows.
func (j *Journey) event(e observe.Event) {
	j.mu.Lock()
	j.boots.Add(e)
	j.mu.Unlock()
	for _, t := range j.travellers {
		if t.machine.MAC.String() == e.Machine {
			j.seen(t, e)
			return
		}
	}
}

func (j *Journey) seen(t *traveller, e observe.Event) {
	m := mark{ok: true, detail: e.Detail, at: e.At}
	switch e.Kind {
	case observe.DHCP:
		m.step = map[string]string{
			"DISCOVER": StepDiscover, "OFFER": StepOffer, "ACK": StepAck,
			"SOLICIT": StepSolicit, "ADVERTISE": StepAdvertise, "REPLY": StepReply,
		}[e.Name]
	case observe.TFTP:
		if e.Bytes == 0 {
			return // firmware that asks for the size
		}
		m.step = StepTFTP
		m.detail = fmt.Sprintf("%s, %d bytes in %.1f s from %s", e.Name, e.Bytes, e.Took.Seconds(), e.Server)
	case observe.HTTP:
		m.step = stepOf(e.Name, machine.KernelFile, machine.InitramfsFile)
		m.detail = fmt.Sprintf("%s, %d bytes in %.1f s from %s", e.Name, e.Bytes, e.Took.Seconds(), e.Server)
		if e.Detail != "" {
			m.detail += "; " + e.Detail
		}
		if whole := j.opts.Media.InitramfsSize; m.step == StepInitramfs && e.Bytes != whole {
			m.ok, m.detail = false, fmt.Sprintf("%s: %d bytes came, it has %d", e.Name, e.Bytes, whole)
		}
	case observe.Trouble:
		j.mu.Lock()
		j.trouble[t.machine.Name] = e
		j.mu.Unlock()
		return
	}
	if m.step != "" {
		t.put(m)
	}
}

// smeeHost finds who Smee says a syslog line is from.
var smeeHost = regexp.MustCompile(`"(host|hostname)":"([^"]*)"`)

// followSmee waits for the machines' syslog lines in Smee's log.
func (j *Journey) followSmee(ctx context.Context) {
	server := lab.Smee
	if j.modern() {
		server = lab.Tinkerbell // Smee is a part of it
	}
	_ = lab.Tail(ctx, j.Lab.LogPath(server), func(line string) bool { // it ends with ctx
		if !strings.Contains(line, `"app-name":"installer"`) {
			return true
		}
		for _, t := range j.travellers {
			if !slices.ContainsFunc(j.opts.Lab.Addrs(t.machine), func(addr netip.Addr) bool {
				return strings.Contains(line, "machine "+t.machine.MAC.String()+" at "+addr.String()+" begins")
			}) {
				continue
			}
			detail := "Smee logged it"
			for _, found := range smeeHost.FindAllStringSubmatch(line, -1) {
				detail += fmt.Sprintf(", %s %s", found[1], found[2])
			}
			t.put(mark{step: StepSyslog, ok: true, detail: detail})
		}
		return true
	})
}

// listener finds what broadcast-init made in the pod.
func listener(l *lab.Lab) (detail string, err error) {
	err = l.Do(lab.RolePod, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("failed to list the pod's interfaces: %w", err)
		}
		for _, link := range links {
			attrs := link.Attrs()
			if kind := link.Type(); kind == "macvlan" || kind == "ipvlan" {
				if attrs.Flags&net.FlagUp == 0 {
					return fmt.Errorf("the pod's listener %s is down", attrs.Name)
				}
				detail = fmt.Sprintf("%s, %s, %s, mtu %d", attrs.Name, kind, attrs.HardwareAddr, attrs.MTU)
				return nil
			}
		}
		return errors.New("the pod has no listener: broadcast-init made none")
	})
	return detail, err
}

// because adds to an error what else is known.
func (j *Journey) because(err error) string {
	text := err.Error()
	if more := j.dead(lab.DHCPRelay, lab.StackProxy, lab.Smee, lab.Hegel, lab.Tinkerbell, lab.Tink); more != "" {
		text += "; " + more
	}
	return text
}

// hint says what the programs that a step needs have been up to since it began.
func (j *Journey) hint(t *traveller, s stage, since time.Time) string {
	var hints []string
	j.mu.Lock()
	if trouble := j.trouble[t.machine.Name]; !trouble.At.Before(since) {
		hints = append(hints, "the last answer that said no: "+trouble.Detail)
	}
	j.mu.Unlock()
	if j.Lab == nil {
		return strings.Join(hints, "; ")
	}
	if dead := j.dead(s.programs...); dead != "" {
		hints = append(hints, dead)
	}
	for _, name := range s.programs {
		if line := lastTrouble(j.Lab.LogPath(name), since); line != "" {
			hints = append(hints, name+" says: "+line)
		}
	}
	if t.firmware != firmwareGo && !s.alone { // else its signs say so
		hints = append(hints, j.printed(t)()...)
	}
	return strings.Join(hints, "; ")
}

// signs are how far the transfer of a stage has come, and what the machine prints where it computes alone.
func (j *Journey) signs(t *traveller, s stage) (signs []func() string) {
	if j.Lab == nil {
		return nil
	}
	signs = append(signs, func() string { return j.sniffer.Reached(t.machine.MAC.String()) })
	if s.alone && t.firmware != firmwareGo {
		printed := j.printed(t)
		signs = append(signs, func() string { return strings.Join(printed(), "; ") })
	}
	return signs
}

// printed says what a virtual machine printed last: its firmware, and the system that it booted.
func (j *Journey) printed(t *traveller) func() []string {
	firmware := process.LastLine("the firmware", machine.FirmwareLog(j.Lab, t.machine.Name))
	system := process.LastLine("the system", j.Lab.LogPath(t.machine.Name))
	return func() (texts []string) {
		for _, text := range []string{firmware(), system()} {
			if text != "" {
				texts = append(texts, text)
			}
		}
		return texts
	}
}

// dead names the programs that are not running.
func (j *Journey) dead(names ...string) string {
	var dead []string
	for _, name := range names {
		proc := j.Lab.Proc(name)
		if proc == nil || name == lab.BroadcastInit {
			continue // left out on purpose, or an init container
		}
		select {
		case <-proc.Done():
			how := "it ended with status 0"
			if err := proc.Wait(); err != nil {
				how = err.Error()
			}
			dead = append(dead, fmt.Sprintf("%s is not running (%s)", name, how))
		default:
		}
	}
	return strings.Join(dead, "; ")
}

// logTime finds when a line of a log was written.
var logTime = regexp.MustCompile(`"time":"([^"]+)"`)

// lastTrouble finds the last line in the end of a log that tells of trouble and was written since a time.
func lastTrouble(path string, since time.Time) string {
	const end = 64 << 10
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	text = text[max(0, len(text)-end):]
	lines := bytes.Split(text, []byte("\n"))
	for i := len(lines) - 1; i >= 0; i-- {
		if found := logTime.FindSubmatch(lines[i]); found != nil {
			at, err := time.Parse(time.RFC3339Nano, string(found[1]))
			if err == nil && at.Before(since.Truncate(time.Second)) { // some write no fractions
				return ""
			}
		}
		for _, level := range []string{"ERROR", "WARN", "error", "warn"} {
			if bytes.Contains(lines[i], []byte(`"level":"`+level+`"`)) {
				return oneLine(string(lines[i][:min(len(lines[i]), 300)]))
			}
		}
	}
	return ""
}
