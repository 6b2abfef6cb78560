package journal

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
)

// verdict is what an event says about its step.
type verdict uint8

const (
	neutral verdict = iota // nothing: a probe of a file's size, a redirect
	goesOn
	good
	bad
)

// gRPC's codes, as far as they mean something of their own here.
const (
	grpcCanceled    = 1
	grpcDeadline    = 4
	grpcNotFound    = 5
	grpcUnavailable = 14
)

// served records a transfer, request or connection.
func (j *Journal) served(m *machine, e *boot.Event) {
	began := e.At - int64(max(0, e.Took))
	b := m.bootAt(began)
	s := stepOf(e, b)
	if b == nil || b.expected || b == m.newest() && j.beginsBoot(b, s, began) {
		b = j.newBoot(m, e)
		s = stepOf(e, b)
	}
	v := verdictOf(e, s)
	if b != m.newest() { // It says nothing of the boot that goes on.
		j.keep(b, b.enter(s, began), e, v, began)
		return
	}
	if began < b.attemptAt { // Nor of the attempt that goes on. The one in which it began may be no longer kept.
		if i := b.index(s, 0, b.attempt); i >= 0 {
			j.keep(b, i, e, v, began)
		}
		return
	}
	i := b.enter(s, began)
	if s.order() >= Loader.order() && s.order() <= Initramfs.order() || s == Agent {
		b.facts.fromDisk = false
	}
	b.facts.ipxeRuns = b.facts.ipxeRuns || isAutoexec(e)
	j.keep(b, i, e, v, began)
	last := b.lastHeard
	if !isOurTimer(string(e.Text(boot.Reason))) {
		last = e.At
	}
	b.heardAt(last) // An end by our own timer is no sign of the machine.
	st := &b.steps[i]
	st.end = max(st.end, e.At)
	if s == Agent {
		b.facts.agent.serve(e, v, last)
	}
	b.facts.redirected(e, v)
	switch v {
	case goesOn:
		st.result = Going
		if s == Agent {
			j.progress(m, b, s, e)
		}
	case good:
		st.result, st.lastResult = OK, OK
		if st.step == s { // A boot that has maxSteps already gets no further one: then st is another.
			j.progress(m, b, s, e)
		}
	case bad:
		st.result, st.lastResult = Failed, Failed
		b.facts.fail(s, e)
	case neutral:
		if b.oldestOpen() == nil && st.lastResult != "" { // As it was before this message, which says nothing.
			st.result = st.lastResult
		}
	}
}

// beginsBoot tells whether a step is that of a boot after b, whose DHCP was not heard here.
func (j *Journal) beginsBoot(b *bootRecord, s Step, began int64) bool {
	switch s {
	case Loader, Script:
		late := b.furthest.order() >= OSDHCP.order() && began-b.moved > waitOffer
		return b.state.over() || late
	case Kernel, Initramfs:
		return b.state.done() && began-b.lastHeard > waitBootAgain
	default:
		silent := began-b.lastHeard > waitSilent
		return (b.state == Quiet || b.state == StateFailed) && silent && !b.facts.fromDisk
	}
}

// keep keeps what was heard among the boot's messages, once for its begin and its end, and the step's sums.
func (j *Journal) keep(b *bootRecord, i int, e *boot.Event, v verdict, began int64) {
	kind, about := kindOf(e), text(e, boot.File, maxFile)
	if e.Kind == boot.Stream && about == "" {
		about = text(e, boot.Where, maxName)
	}
	st := &b.steps[i]
	if !isAutoexec(e) && !notAllowed(about) && (v != neutral || st.text == "") {
		st.from, st.text = addrPort(e), about
	}
	a := message{
		kind: kind, text: about, result: resultOf(e), ok: v != bad, begin: began, end: e.At,
		bytes: e.Bytes, expected: e.Expected, from: addrPort(e),
	}
	if v == goesOn {
		a.course = underWay
		if e.Kind == boot.HTTP && e.Status == 0 {
			a.course = waiting
		}
		if old := b.underWay(i, kind, about); old != nil && (e.Bytes > 0 || old.course == waiting) {
			if old.expected, old.course = e.Expected, a.course; e.Bytes > old.bytes {
				old.bytes, old.end = e.Bytes, e.At
			}
			return
		}
		j.add(b, i, a)
		return
	}
	st.bytes += e.Bytes
	if old := b.underWay(i, kind, about); old != nil {
		a.step, a.count, a.begin = old.step, old.count, old.begin
		*old = a
		return
	}
	j.add(b, i, a)
}

func kindOf(e *boot.Event) string {
	switch e.Kind {
	case boot.TFTP:
		return "TFTP"
	case boot.HTTP:
		if method := text(e, boot.Method, 16); method != "" {
			return method
		}
		return "HTTP"
	default:
		if len(e.Text(boot.File)) > 0 {
			return "gRPC"
		}
		return "TCP"
	}
}

// resultOf says in words how an exchange ended, or that it goes on.
func resultOf(e *boot.Event) string {
	switch e.Outcome {
	case boot.Passed:
		return "sent on"
	case boot.Began:
		return "going"
	case boot.Torn:
		if e.Expected > 0 {
			return fmt.Sprintf("torn after %d of %d bytes", e.Bytes, e.Expected)
		}
		return fmt.Sprintf("torn after %d bytes", e.Bytes)
	case boot.Refused:
		return "refused: " + text(e, boot.Reason, maxName)
	case boot.NoServer:
		return "no endpoint answered"
	case boot.Dropped:
		return "dropped: " + text(e, boot.Reason, maxName)
	}
	switch {
	case e.Kind == boot.HTTP && e.Status != 0:
		return strconv.Itoa(int(e.Status))
	case e.Kind == boot.TFTP && e.Status > 0:
		return fmt.Sprintf("error %d: %s", e.Status-1, text(e, boot.Message, maxName))
	case e.Kind == boot.Stream && e.Status > 0:
		return fmt.Sprintf("code %d: %s", e.Status, text(e, boot.Message, maxName))
	default:
		return "ok"
	}
}

// verdictOf tells what an event says about its step.
func verdictOf(e *boot.Event, s Step) verdict {
	switch e.Outcome {
	case boot.Began:
		return goesOn
	case boot.Dropped, boot.Passed:
		return neutral
	}
	if isOwn(e) {
		return neutral
	}
	if e.Outcome == boot.NoServer || e.Outcome == boot.Refused {
		return bad
	}
	switch e.Kind {
	case boot.TFTP:
		return verdictOfTFTP(e)
	case boot.HTTP:
		return verdictOfHTTP(e, s)
	default:
		switch {
		case e.Outcome == boot.Torn, e.Status == grpcCanceled, e.Status == grpcDeadline:
			return neutral // The agent's machine was switched off or restarted, as its last action does.
		case e.Status > 0:
			return bad
		default:
			return good
		}
	}
}

// isOwn tells whether an end is this service's or the machine's own doing, and says nothing of the boot.
func isOwn(e *boot.Event) bool {
	switch string(e.Text(boot.Reason)) {
	case boot.ReasonReplaced, boot.ReasonDrained, boot.ReasonEvicted, boot.ReasonClientBody:
		return true
	case boot.ReasonClientGone:
		return e.Bytes == 0
	}
	return false
}

// notAllowed tells whether a file is the one that Smee names to machines that may not boot from the network.
func notAllowed(file string) bool { return strings.HasSuffix(file, "netboot-not-allowed") }

// isAutoexec tells whether a file is the script that iPXE for UEFI asks for first of all.
func isAutoexec(e *boot.Event) bool {
	return e.Kind == boot.TFTP && path.Base(string(e.Text(boot.File))) == autoexec
}

// verdictOfTFTP knows firmware that asks for a file's size and gives up the transfer (RFC 2349's tsize), as EDK II
// does.
func verdictOfTFTP(e *boot.Event) verdict {
	probe := e.Bytes <= 2*max(uint64(e.Block), 512) && e.Resent == 0
	switch {
	case fromClient(e) && probe, e.Outcome == boot.Torn && probe && e.Expected > e.Bytes && e.Bytes > 0:
		return neutral
	case e.Status == 2 && (isAutoexec(e) || notAllowed(string(e.Text(boot.File)))):
		return neutral
	case e.Status > 0, e.Outcome == boot.Torn, e.Bytes < e.Expected:
		return bad
	default:
		return good
	}
}

// fromClient tells whether it was the machine that ended a TFTP transfer with an error.
func fromClient(e *boot.Event) bool {
	const refusesOptions = 8 + 1 // RFC 2347: a server does not send it
	aborted := e.Status == refusesOptions || e.Status == 1 && containsFold(string(e.Text(boot.Message)), "aborted")
	return string(e.Text(boot.Reason)) == boot.ReasonClientError || e.Kind == boot.TFTP && aborted
}

func verdictOfHTTP(e *boot.Event, s Step) verdict {
	whole := path.Ext(string(e.Text(boot.File))) != ".iso" // A BMC reads an image here and there, and hangs up.
	switch {
	case string(e.Text(boot.Method)) == "HEAD", e.Status >= 300 && e.Status < 400 && e.Status != 304:
		return neutral
	case e.Status >= 400:
		return bad
	case s == Agent && e.Outcome == boot.Torn:
		return neutral
	case whole && (e.Outcome == boot.Torn || e.Bytes < e.Expected && e.Status != 304):
		return bad
	default:
		return good
	}
}

// progress records that a step goes well.
func (j *Journal) progress(m *machine, b *bootRecord, s Step, e *boot.Event) {
	if s != Other {
		b.moved = max(b.moved, e.At)
		m.rise(serviced)
	}
	b.facts.progress(s, e)
	b.overcome(s, e.Outcome == boot.Began)
	if e.Outcome != boot.Began && e.Kind != boot.Stream {
		j.scene.servedFile(e)
	}
}

// shortStreams is how many connections of the agent in a row that end within moments mean that it is sent away.
const shortStreams = 3
