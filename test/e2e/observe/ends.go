package observe

import (
	"fmt"
	"net"
	"time"
)

// torn takes note that a server ends a connection before the answer is whole.
func (t *Tracker) torn(at time.Time, key flow, e *exchange, p Packet) {
	missing := int32(e.end - p.Seq - uint32(len(p.Payload)))
	if p.Flags&(flagFIN|flagRST) == 0 || !e.endSeen || e.done || missing <= 0 {
		return
	}
	e.done = true
	came := int64(e.end-e.body) - int64(missing)
	t.emit(Event{
		At: at, Machine: net.HardwareAddr(key.machine[:]).String(), Kind: Trouble, Name: e.path, Bytes: came,
		Took: at.Sub(e.start), Server: key.server,
		Detail: fmt.Sprintf("HTTP answer for %s ends after %d of %d bytes", e.path, came, e.end-e.body),
	})
}

// stream follows a connection whose bytes are not read: from its SYN to the first sign of its end.
func (t *Tracker) stream(at time.Time, p Packet) {
	up := flow{machine: [6]byte(p.Src), port: p.From.Port(), server: p.To}
	down := flow{machine: [6]byte(p.Dst), port: p.To.Port(), server: p.From}
	if p.Flags&flagSYN != 0 {
		if _, known := t.streams[up]; known || p.Flags&flagACK != 0 {
			return
		}
		if len(t.streams) >= maxFlows {
			clear(t.streams)
		}
		t.streams[up] = at
		return
	}
	if p.Flags&(flagFIN|flagRST) == 0 {
		return
	}
	for _, key := range []flow{up, down} {
		if began, ok := t.streams[key]; ok {
			delete(t.streams, key)
			t.emit(Event{
				At: at, Machine: net.HardwareAddr(key.machine[:]).String(), Kind: Stream, Took: at.Sub(began),
				Server: key.server,
			})
		}
	}
}
