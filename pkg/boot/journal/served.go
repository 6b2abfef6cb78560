package journal

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/tinkerbell/stack/pkg/boot"
)

// verdict is what an event says about its step.
type verdict uint8

const (
	neutral verdict = iota // nothing: a probe of a file's size, a redirect
	goes
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
	began := e.At
	if e.Outcome != boot.Began {
		began -= int64(max(0, e.Took))
	}
	b := m.bootAt(began)
	s := stepOf(e, b)
	if b == nil || b == m.newest() && j.beginsBoot(b, s, began) {
		b = j.newBoot(m, e)
		s = stepOf(e, b)
	}
	i := b.step(s, began)
	if b.local && s.order() >= Loader.order() && s.order() <= Initramfs.order() {
		b.local = false
	}
	v := judge(e, s)
	j.answered(b, i, e, v, began)
	if b != m.newest() {
		return
	}
	b.sign(e.At)
	st := &b.steps[i]
	st.end = max(st.end, e.At)
	if s == Agent {
		b.agent(e, v)
	}
	switch v {
	case goes:
		st.result = Going
		if s == Agent {
			j.progress(m, b, s, e)
		}
	case good:
		st.result, st.settled = OK, OK
		if st.step == s {
			j.progress(m, b, s, e)
		}
	case bad:
		st.result, st.settled = Failed, Failed
		b.fail(s, e)
	case neutral:
		if _, on := b.goes(s); !on && st.settled != "" { // As before what says nothing began.
			st.result = st.settled
		}
	}
}

// beginsBoot tells whether a step is that of a boot after b, whose DHCP was not heard here.
func (j *Journal) beginsBoot(b *record, s Step, began int64) bool {
	switch s {
	case Loader, Script:
		late := b.at.order() >= OSDHCP.order() && began-b.moved > int64(j.options.Waits.Offer)
		return b.state == Booted || b.state == Silent || late
	case Kernel, Initramfs:
		return b.state == Booted && began-b.end > int64(j.options.Waits.BootAgain)
	default:
		return b.state == Silent && began-b.end > int64(j.options.Waits.Silent) && !b.local
	}
}

// answered keeps the answer itself.
func (j *Journal) answered(b *record, i int, e *boot.Event, v verdict, began int64) {
	kind, about := kindOf(e), text(e, boot.File, maxFile)
	if e.Kind == boot.Stream && about == "" {
		about = text(e, boot.Place, maxName)
	}
	st := &b.steps[i]
	if v != neutral || st.text == "" {
		st.from, st.text = addrPort(e), about
	}
	a := answer{
		kind: kind, text: about, result: resultOf(e), ok: v != bad, going: v == goes, begin: began, end: e.At,
		bytes: e.Bytes, expected: e.Expected, from: addrPort(e),
	}
	if v == goes {
		j.add(b, i, a)
		return
	}
	st.bytes += e.Bytes
	if old := b.finish(i, kind, about); old != nil {
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

// resultOf is an end in words.
func resultOf(e *boot.Event) string {
	switch e.Outcome {
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

// judge tells what an event says about its step.
func judge(e *boot.Event, s Step) verdict {
	switch e.Outcome {
	case boot.Began:
		return goes
	case boot.Dropped, boot.Passed:
		return neutral
	}
	switch string(e.Text(boot.Reason)) {
	case "replaced", "drained", "evicted", "client_stalled", "client_body": // nothing of the service's
		return neutral
	case "client_gone":
		if e.Bytes == 0 {
			return neutral
		}
	}
	if e.Outcome == boot.NoServer || e.Outcome == boot.Refused {
		return bad
	}
	switch e.Kind {
	case boot.TFTP:
		return judgeTFTP(e)
	case boot.HTTP:
		return judgeHTTP(e, s)
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

// judgeTFTP knows firmware that asks for a file's size and gives up the transfer (RFC 2349's tsize), as EDK II does.
func judgeTFTP(e *boot.Event) verdict {
	probe := e.Bytes <= 2*max(uint64(e.Block), 512) && e.Resent == 0
	switch {
	case fromClient(e) && probe, e.Outcome == boot.Torn && probe && e.Expected > e.Bytes && e.Bytes > 0:
		return neutral
	case e.Status == 2 && path.Base(string(e.Text(boot.File))) == autoexec:
		return neutral
	case e.Status > 0, e.Outcome == boot.Torn, e.Bytes < e.Expected:
		return bad
	default:
		return good
	}
}

// fromClient tells whether it was the machine that ended a TFTP transfer with an error.
func fromClient(e *boot.Event) bool { return string(e.Text(boot.Reason)) == "client_error" }

func judgeHTTP(e *boot.Event, s Step) verdict {
	whole := path.Ext(string(e.Text(boot.File))) != ".iso" // A BMC reads an image here and there, and hangs up.
	switch {
	case e.Status >= 400:
		return bad
	case e.Status >= 300 && e.Status != 304, string(e.Text(boot.Method)) == "HEAD":
		return neutral
	case s == Agent && e.Outcome == boot.Torn:
		return neutral
	case whole && (e.Outcome == boot.Torn || e.Bytes < e.Expected && e.Status != 304):
		return bad
	default:
		return good
	}
}

// progress records that a step went well.
func (j *Journal) progress(m *machine, b *record, s Step, e *boot.Event) {
	at := e.At
	if s != Other {
		b.moved = max(b.moved, at)
		m.rise(serviced)
	}
	j.scene.passed(s, at)
	if f := &b.failed; f.step == s && (s != Agent || e.Outcome != boot.Began) ||
		s != Other && f.step.order() < s.order() && (f.step != Metadata || f.outcome != boot.NoServer) {
		*f = failure{}
	}
	switch s {
	case Loader:
		b.loads++
	case Script:
		b.loads = 0
		b.returned = failure{}
	case Kernel:
		b.kernel = true
	}
	if e.Outcome == boot.Began {
		return
	}
	file := text(e, boot.File, maxFile)
	j.scene.servedFile(file)
	if (s == Kernel || s == Initramfs || s == Files) && e.Offset == 0 && e.Status != 206 && e.Kind != boot.Stream {
		b.fetched(file)
	}
}

// fetched counts how often files were served whole.
func (b *record) fetched(file string) {
	for i := range b.fetches {
		if b.fetches[i].file == file {
			b.fetches[i].count++
			return
		}
	}
	if len(b.fetches) == maxFetches {
		b.fetches = slices.Delete(b.fetches, 0, 1)
	}
	b.fetches = append(b.fetches, fetch{file, 1})
}

// fail keeps what went wrong.
func (b *record) fail(s Step, e *boot.Event) {
	f := failure{
		step: s, at: e.At, kind: e.Kind, outcome: e.Outcome, status: e.Status, file: text(e, boot.File, maxFile),
		message: text(e, boot.Message, maxText), place: text(e, boot.Place, maxName), from: addrPort(e), bytes: e.Bytes,
		expected: e.Expected, resent: e.Resent, block: e.Block, count: 1,
	}
	if e.Outcome == boot.Refused {
		f.message = text(e, boot.Reason, maxName)
	}
	f.byMachine = fromClient(e) || string(e.Text(boot.Reason)) == "client_gone"
	if old := &b.failed; old.step == s && old.file == f.file && old.outcome == f.outcome && old.status == f.status {
		f.count = old.count + 1
		f.at = old.at // The wait for another attempt does not begin again with each.
	}
	b.failed = f
}

// agent takes note of how the agent fares. Over TCP its connection is all that is seen; with gRPC, calls are, and an
// agent asks again and again for work.
func (b *record) agent(e *boot.Event, v verdict) {
	const moment = 2e9
	call := string(e.Text(boot.File))
	b.called = e.At
	switch {
	case v == goes:
		if call == "" {
			b.streams++
		}
	case call == "":
		b.streams = max(0, b.streams-1)
		if v == good {
			b.finished = e.At
			if b.short++; int64(e.Took) >= moment {
				b.short = 0
			}
		}
	case containsFold(call, "Report") || containsFold(call, "PublishEvent"):
		if v == good {
			b.reported, b.polls = true, 0
			b.finished = e.At
		}
	case v == good && b.polls == 0 && !b.reported:
		b.polls = e.At
	}
	if v == goes && call == "" {
		b.finished = 0
	}
}

// shortStreams is how many connections of the agent in a row that end within moments mean that it is sent away.
const shortStreams = 3
