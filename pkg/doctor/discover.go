package doctor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
)

// conversation is a DISCOVER and its answers.
type conversation struct {
	ask   *offer.Ask
	heard []offer.Heard // different ones, as many as are kept
	count int           // of all
	sent  int           // how often it was asked
}

// mostAnswers is how many different answers to one question are kept.
const mostAnswers = 64

// offers are the answers that a client would take.
func (c *conversation) offers() (good []offer.Offer) {
	for _, h := range c.heard {
		if h.Fault == "" {
			good = append(good, h.Offer)
		}
	}
	return good
}

// stages are the questions of a run.
type stages struct {
	firmware, ipxe, tinkerbell *conversation
	other                      *conversation // the same processor's firmware that boots the other way; may be nil
}

// answered tells whether firmware and iPXE have an answer: one may have been lost.
func (s *stages) answered() bool {
	return len(s.firmware.offers()) > 0 && len(s.ipxe.offers())+len(s.tinkerbell.offers()) > 0
}

func (s *stages) all() (all []*conversation) {
	for _, c := range []*conversation{s.firmware, s.ipxe, s.tinkerbell, s.other} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// stages makes the questions.
func (r *run) stages() (s stages) {
	begin := func(stage offer.Stage, arch offer.Arch) *conversation {
		q, err := offer.New(stage, arch, r.MAC)
		if err != nil {
			panic(err) // of constants and a MAC that was parsed
		}
		return &conversation{ask: q}
	}
	s.firmware, s.ipxe = begin(offer.Firmware, r.Arch), begin(offer.IPXE, r.Arch)
	s.tinkerbell = begin(offer.Tinkerbell, r.Arch)
	if other, ok := r.Arch.Other(); ok {
		s.other = begin(offer.Firmware, other)
	}
	return s
}

// discover asks as each stage of a boot, and again where there is no answer: some servers look first whether an address
// is free, others answer only who asks for some seconds. It waits for every answer that comes within the window.
func (r *run) discover(ctx context.Context) *stages {
	a := r.stages()
	r.Progress(fmt.Sprintf("asking for OFFERs as %s and as iPXE", r.Arch.Name))
	began := time.Now()
	var mu sync.Mutex
	defer r.link.Tap(func(in link.Received) {
		if tagOf(in) != 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range a.all() {
			if h, ok := c.ask.Hear(in.Frame, in.Sum); ok {
				h.After = time.Since(began)
				c.take(h)
			}
		}
	})()
	// Each question is asked twice in a window, since one may be lost.
	const windows, perWindow = 3, 2
	for round := range windows * perWindow {
		mu.Lock()
		var silent []*conversation
		for _, c := range a.all() {
			if len(c.offers()) == 0 {
				silent = append(silent, c)
			}
		}
		got := a.answered()
		mu.Unlock()
		if got && round%perWindow == 0 || ctx.Err() != nil {
			break
		}
		if round > 0 && round%perWindow == 0 {
			r.Progress("no OFFER yet: asking again")
		}
		for _, c := range silent {
			// Half a second more than passed: servers that wait count whole seconds.
			_ = r.link.Send(c.ask.Frame(r.link.MAC, time.Since(began)+time.Second/2))
			c.sent++
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.Window / perWindow):
		}
	}
	mu.Lock()
	defer mu.Unlock()
	r.note(&a, began)
	return &a
}

// note adds the answers to the table of what was asked.
func (r *run) note(a *stages, began time.Time) {
	for _, c := range a.all() {
		for _, h := range c.heard {
			said := h.Fault
			if said == "" {
				said = fmt.Sprintf("address %s, %s, %s", h.Addr, h.BootData(), routerOf(h.Offer))
			}
			asked := fmt.Sprintf("DHCP as %s (%s)", h.Stage, h.Arch.Name)
			of := h.Server.String()
			if h.Relay.IsValid() {
				of += " by the relay " + h.Relay.String()
			}
			r.step(began, asked, fmt.Sprintf("%s (%s)", of, h.From), said)
		}
	}
}

// take keeps an answer unless it is there already.
func (c *conversation) take(h offer.Heard) {
	c.count++
	same := func(o offer.Heard) bool {
		return o.Fault == h.Fault && o.From == h.From && o.Server == h.Server && o.Addr == h.Addr && o.Relay == h.Relay &&
			o.BootData() == h.BootData()
	}
	if len(c.heard) < mostAnswers && !slices.ContainsFunc(c.heard, same) {
		c.heard = append(c.heard, h)
	}
}
