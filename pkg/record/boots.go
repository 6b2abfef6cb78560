package record

import (
	"hash/maphash"
	"sync"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Boots is a sink that makes events of exchanges, for stack-boots. It bounds what a flood can cause any number of:
// refusals, and ordinary HTTP requests of one client.
type Boots struct {
	requests, lines func(*boot.Event)
	refused         [refusedPorts]boot.Allowance
	budgets         budgets
}

// NewBoots makes a sink that gives the events of syslog lines, which may be a flood, to one function, and all others to
// another one. They are called by many goroutines, and an event is valid during the call.
func NewBoots(requests, lines func(*boot.Event)) *Boots {
	return &Boots{requests: requests, lines: lines, budgets: budgets{seed: maphash.MakeSeed()}}
}

// Spared is how many ordinary requests have no event.
func (b *Boots) Spared() uint64 { return b.budgets.spared.Load() }

// refusedPorts is for how many ports refusals are bounded apart: a flood at one port hides no refusal at another, but
// for those that share a place.
const refusedPorts = 64

// Lengths of texts in an event, in bytes; what is longer is cut.
const mostName, mostSoftware, mostMessage, mostMethod, mostRoute, mostReason = 160, 64, 64, 12, 24, 48

// Those of a syslog line.
const mostTag, mostLine = 48, 256

// The words of events.
var (
	kinds    = [...]boot.Kind{HTTP: boot.HTTP, Stream: boot.Stream, TFTP: boot.TFTP, Syslog: boot.Syslog}
	outcomes = [...]boot.Outcome{
		Done: boot.Done, Began: boot.Began, Torn: boot.Torn, Refused: boot.Refused, NoServer: boot.NoServer,
	}
)

// events has empty events for reuse. An event on the stack would escape to the heap each time, since the compiler does
// not know that the functions in Boots keep none.
var events = sync.Pool{New: func() any { return new(boot.Event) }}

// Record is the sink.
func (b *Boots) Record(x Exchange) {
	at := x.Begin.UnixNano() + int64(x.Took)
	switch {
	case x.Outcome == Refused, x.Outcome == NoServer && !x.Endpoint.IsValid():
		if !b.refused[x.Port%refusedPorts].Take(at) {
			return
		}
	case x.Outcome == Done && x.Kind == HTTP:
		if !b.budgets.allow(x.Client, at, x.Code, max(x.Bytes, x.Expected)) {
			return
		}
	}
	e := events.Get().(*boot.Event)
	defer func() {
		e.Reset()
		events.Put(e)
	}()
	e.Kind, e.Outcome, e.At, e.Took = kinds[x.Kind], outcomes[x.Outcome], at, x.Took
	e.Client, e.AskedPort = boot.Bytes(x.Client), x.Port
	e.Endpoint, e.Port = boot.Bytes(x.Endpoint.Addr()), x.Endpoint.Port()
	e.Bytes, e.Expected, e.Offset = x.Bytes, x.Expected, x.Offset
	e.Resent, e.Block, e.Window = x.Resent, x.BlockSize, x.Window
	tell, software, message := b.requests, mostSoftware, mostMessage
	if x.Kind == Syslog {
		tell, software, message = b.lines, mostTag, mostLine
		e.Priority = uint8(x.Code)
		if x.Outcome == Done {
			e.Outcome = boot.Passed
		}
	} else {
		e.Status = x.Code
	}
	boot.SetText(e, boot.File, mostName, x.Name)
	boot.SetText(e, boot.Agent, software, x.Software)
	boot.SetText(e, boot.Message, message, x.Message)
	boot.SetText(e, boot.Method, mostMethod, x.Method)
	boot.SetText(e, boot.Where, mostRoute, x.Route)
	boot.SetText(e, boot.Reason, mostReason, x.Reason)
	tell(e)
}
