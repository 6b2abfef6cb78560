package serve

import "time"

// Times after which what was sent is sent again. The wait follows from the round trips (RFC 6298), and doubles with
// each repetition until a block that was sent once is acknowledged.
const (
	firstWait, leastWait, mostWait = time.Second, 50 * time.Millisecond, 4 * time.Second
	// An ACK of the block before the window asks for the window again, if it comes askAgain or more after that was sent.
	// A sooner one is the second ACK of a block that arrived twice: an answer to it would have every later block sent
	// twice (RFC 1123, section 4.2.3.1).
	askAgain = 100 * time.Millisecond
)

const (
	// A client that has not acknowledged anything may be an invented address: it gets the first answer so many times.
	firstSends = 4
	// firstPatience is for how long a client may take for its first acknowledgement.
	firstPatience = 15 * time.Second
	// lastSends is how many times the last window is sent to a client that is silent. Most clients close their socket
	// with their last ACK, so that its loss is not noticed there.
	lastSends = 5
)

// Action is what the caller has to do.
type Action uint8

// The actions.
const (
	Nothing  Action = iota
	SendOACK        // send Options.OACK
	SendData        // send the blocks of Span
	Complete        // the client has the whole file
	GiveUp          // the client has never answered
)

// Transfer sends one file to one client.
type Transfer struct {
	Options
	last  uint64 // the number of the last, short block
	acked uint64 // the highest block that was acknowledged
	sent  uint64 // the highest one that was sent
	// Resent is how many blocks were sent again, and options (OACK) as one.
	Resent uint32

	begun        time.Time
	sentAt       time.Time // the window, or the first answer
	sends        int       // how many times that was sent
	acknowledged bool      // the client has acknowledged something
	opened       bool      // blocks are sent: there was no OACK, or it was acknowledged
	srtt, dev    time.Duration
	wait         time.Duration
}

// Start begins a transfer of a file of so many bytes with the first answer.
func (t *Transfer) Start(o Options, size int64, now time.Time) Action {
	*t = Transfer{Options: o, last: uint64(size)/uint64(o.BlockSize) + 1, begun: now, wait: firstWait}
	if o.Repeat > 0 {
		t.wait = min(t.wait, o.Repeat)
	}
	return t.first(now)
}

// first sends the first answer.
func (t *Transfer) first(now time.Time) Action {
	if t.sends > 0 {
		t.Resent += uint32(max(t.sent, 1))
	}
	t.sentAt = now
	t.sends++
	if t.OACK != nil {
		return SendOACK
	}
	t.opened, t.sent = true, min(t.last, uint64(t.Window))
	return SendData
}

// Span is the numbers of the first and the last block to be sent, from 1 on. A block's number on the wire is
// their low 16 bits.
func (t *Transfer) Span() (first, last uint64) { return t.acked + 1, t.sent }

// Acked is how many blocks the client has acknowledged.
func (t *Transfer) Acked() uint64 { return t.acked }

// ACK takes an acknowledgement. It also reports whether the client made a step: it can have sent the ACK only if it has
// got the last answer.
func (t *Transfer) ACK(n uint16, now time.Time) (a Action, step bool) {
	if !t.opened {
		if n != 0 {
			return Nothing, false
		}
		t.opened = true
		t.sample(now)
		return t.advance(now), true
	}
	at := t.sent - uint64(uint16(t.sent)-n) // the highest number that is not above sent, whose low 16 bits are n
	switch {
	case uint64(uint16(t.sent)-n) > t.sent-t.acked:
		return Nothing, false // of the past, or of a block that was never sent
	case at > t.acked:
		if at == t.sent {
			t.sample(now)
		}
		t.acked = at
		return t.advance(now), true
	case now.Sub(t.sentAt) >= max(askAgain, t.srtt): // the client has nothing of the window
		return t.again(now), false
	}
	return Nothing, false
}

// advance goes on to the next window, which is always sent whole: clients acknowledge nothing less, except at the end.
func (t *Transfer) advance(now time.Time) Action {
	t.acknowledged = true
	if t.acked == t.last {
		return Complete
	}
	before := t.sent
	t.sent = min(t.acked+uint64(t.Window), t.last)
	if before > t.acked {
		t.Resent += uint32(before - t.acked)
	}
	t.sentAt, t.sends = now, 1
	return SendData
}

// again sends once more what was sent last.
func (t *Transfer) again(now time.Time) Action {
	t.sentAt = now
	t.sends++
	t.Resent += uint32(t.sent - t.acked)
	return SendData
}

// Delayed says that what was to be sent is sent only now.
func (t *Transfer) Delayed(now time.Time) { t.sentAt = now }

// sample takes the time of a round trip, unless the answer may be to a repetition (Karn).
func (t *Transfer) sample(now time.Time) {
	if t.sends > 1 {
		return
	}
	rtt := now.Sub(t.sentAt)
	if t.srtt == 0 {
		t.srtt, t.dev = rtt, rtt/2
	} else {
		t.dev += ((t.srtt - rtt).Abs() - t.dev) / 4
		t.srtt += (rtt - t.srtt) / 8
	}
	t.wait = min(max(t.srtt+4*t.dev, 3*t.srtt, leastWait), mostWait)
	if t.Repeat > 0 {
		t.wait = min(t.wait, t.Repeat)
	}
}

// Due is when Timeout is to be called.
func (t *Transfer) Due() time.Time {
	due, end := t.sentAt.Add(t.wait), t.begun.Add(firstPatience)
	if !t.acknowledged && (t.sends >= firstSends || due.After(end)) {
		return end
	}
	return due
}

// Timeout is called when the time of Due has come.
func (t *Transfer) Timeout(now time.Time) Action {
	t.wait = min(2*t.wait, mostWait)
	switch {
	case !t.acknowledged && now.Sub(t.begun) >= firstPatience:
		return GiveUp
	case !t.acknowledged && t.sends < firstSends:
		return t.first(now)
	case !t.acknowledged:
		return Nothing
	case t.sent == t.last && t.sends >= lastSends && (t.acked > 0 || t.last == 1):
		// Its last ACK is lost, and its socket closed. Where not one of several blocks was acknowledged, it has rather got
		// none.
		return Complete
	}
	return t.again(now)
}

// RepeatFirst sends the first answer again, to a client that repeats its request. It reports false where the client had
// the answer.
func (t *Transfer) RepeatFirst(now time.Time) (Action, bool) {
	if t.acknowledged {
		return Nothing, false
	}
	return t.first(now), true
}

// Restarts reports whether a request that equals the transfer's own one, after the client has acknowledged something,
// comes from a client that began anew: the network's duplicate of the request comes while blocks flow.
func (t *Transfer) Restarts(now time.Time) bool { return now.Sub(t.sentAt) >= max(askAgain, t.srtt) }
