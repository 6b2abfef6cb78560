// Package recordtest collects in tests what is recorded of exchanges.
package recordtest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/record"
)

// mostKept bounds what a log keeps, so that it allocates nothing in a long test.
const mostKept = 64

// Log has the first exchanges that were recorded. Their times and port are checked, and left out.
type Log struct {
	Port uint16
	// Under has the log keep what is recorded of an exchange under way, which depends on how slow the machine is.
	Under bool

	mu  sync.Mutex
	all []record.Exchange
}

// Add is a [record.Sink].
func (l *Log) Add(x record.Exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == mostKept || x.Outcome == record.Began && x.Took > 0 && !l.Under {
		return
	}
	ago := time.Since(x.Begin)
	odd := ago < 0 || ago > time.Hour || x.Took < 0 || x.Took > ago
	switch {
	case x.Outcome == record.Began: // or it waits, or is on its way
		odd = odd || x.Took != 0 && x.Took < record.Waits
	case x.Kind == record.HTTP,
		x.Kind == record.Stream && x.Reason != boot.ReasonHandshake && x.Reason != boot.ReasonTLSOnPlain:
		odd = odd || x.Took == 0
	}
	if odd {
		x.Reason += fmt.Sprintf(" (began %v ago, took %v)", ago, x.Took)
	}
	if x.Port != l.Port {
		x.Reason += fmt.Sprintf(" (at port %d)", x.Port)
	}
	x.Port, x.Begin, x.Took = 0, time.Time{}, 0
	for _, text := range []*string{&x.Method, &x.Name, &x.Software, &x.Message} {
		*text = strings.Clone(*text)
	}
	l.all = append(l.all, x)
}

// All is what was recorded so far.
func (l *Log) All() []record.Exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Await waits for the nth exchange and returns all.
func (l *Log) Await(t testing.TB, n int) []record.Exchange {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("%d exchanges", n), func() bool { return len(l.All()) >= n })
	return l.All()
}

// Diff compares what was recorded; it is empty if that is as wanted.
func Diff[T record.Exchange | []record.Exchange](want, got T) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}))
}
