package forward

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// session is what a connection is charged, in bytes.
const session = 20 << 10

// bounded is a site of the Service web with one pod and bounds.
func bounded(t *testing.T, b Bounds) *site {
	t.Helper()
	s := newSite(t, func(o *Options) { o.Bounds = b })
	pod(t, pods[0], 8080)
	s.web()
	s.endpoints("web", pods[0])
	s.set()
	answers(t, "tcp", vip, pods[0])
	testwait.Success(t, "no connection is open", func() error { return s.counts("stack_proxy_tcp_open_connections", "", 0) })
	return s
}

// sum adds the samples of a metric of the listener, those of a reason where one is given.
func (s *site) sum(name, reason string) (sum float64) {
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			ok := f.GetName() == name
			for _, l := range m.GetLabel() {
				ok = ok && (l.GetName() != "reason" || reason == "" || l.GetValue() == reason)
			}
			if ok {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func (s *site) counts(name, reason string, want float64) error {
	if got := s.sum(name, reason); got != want {
		return fmt.Errorf("%s %s is %v, want %v", name, reason, got, want)
	}
	return nil
}

// hold opens a connection that stays, and has it answered once.
func hold(t *testing.T, from string) (client, error) {
	t.Helper()
	c, err := dial("tcp", vip, from)
	if err != nil {
		return c, err // a reset may be quicker than connect(2)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.ask()
	return c, err
}

// One client cannot take all connections: what is beyond its half is refused, and others are served. Nothing stays
// charged when the connections and the Service have gone.
func TestOneClientCannotTakeAll(t *testing.T) {
	const all = 20
	account := admission.New(admission.Limits{Memory: all * session, Descriptors: 1 << 20}, nil)
	s := bounded(t, Bounds{Account: account})
	var open []client
	for range all / 2 {
		c, err := hold(t, "192.0.2.1")
		if err != nil {
			t.Fatalf("connection %d of %d: %v", len(open)+1, all/2, err)
		}
		open = append(open, c)
	}
	const refused = "stack_proxy_tcp_refused_total"
	testwait.Success(t, "a newcomer of the client is refused", func() error {
		for _, c := range open { // those that have not got on for two seconds would go for it
			_, _ = c.ask()
		}
		c, err := dial("tcp", vip, "192.0.2.1")
		if err == nil {
			_, err = c.ask()
			_ = c.Close()
		}
		if err == nil {
			return errors.New("it is served")
		}
		return nil
	})
	if n := s.sum(refused, "client_share"); n < 1 {
		t.Errorf("%v connections are counted as refused for the client's share, want 1", n)
	}
	if n, want := s.sum("stack_proxy_admission_used_bytes", ""), float64(all/2*session); n > want {
		t.Errorf("the client is charged %v bytes, more than its half, %v", n, want)
	}
	for i := range all { // more than there is room for
		c, err := hold(t, "192.0.2.9")
		if i == 0 && err != nil {
			t.Errorf("another client is not served: %v", err)
		}
		if err == nil {
			open = append(open, c)
		}
	}
	if n, most := s.sum("stack_proxy_admission_used_bytes", ""), s.sum("stack_proxy_admission_limit_bytes", ""); n > most {
		t.Errorf("%v bytes are charged, of %v", n, most)
	}
	for _, c := range open {
		_ = c.Close()
	}
	testwait.Success(t, "nothing is charged", func() error { return s.counts("stack_proxy_admission_used_bytes", "", 0) })
	s.services = nil
	s.set()
	testwait.Success(t, "the Service's listeners are not counted any more", func() error {
		descriptions := map[string]int{}
		families, err := s.registry.Gather()
		for _, f := range families {
			descriptions[f.GetName()] = len(f.GetMetric())
		}
		if err == nil && len(descriptions) != 2 { // the account's room and limit
			err = fmt.Errorf("%v are counted", descriptions)
		}
		return err
	})
}
