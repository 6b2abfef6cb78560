package lb

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

// verdictFor is for how long an ear goes by what it found out: all addresses of a link want to know it at one time.
const verdictFor = 5 * time.Second

// errNobodyToAsk is of a link on which this node knows no station.
var errNobodyToAsk = errors.New("this node knows no station of the link")

// ear finds out whether stations of a link answer this node.
type ear struct {
	host Host
	turn func(context.Context) error // waits until a question may be asked

	mu       sync.Mutex // held while it asks: one question at a time, and the others take what it finds out
	verdicts map[whom]verdict
}

// whom is who was asked: those that this node knows on a link, and the node that doubts this one; the zero address is
// none.
type whom struct {
	link    int
	six     bool
	doubter netip.Addr
}

type verdict struct {
	answered bool
	err      error
	at       time.Time
}

// hears reports whether a station of the link of ip answers this node, the doubter among them. It is an error if there
// is none to ask.
func (e *ear) hears(ctx context.Context, link address.Link, ip, doubter netip.Addr) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	who := whom{link.Index, ip.Is6(), doubter}
	if v, known := e.verdicts[who]; known && time.Since(v.at) < verdictFor {
		return v.answered, v.err
	}
	answered, err := e.ask(ctx, link, ip, doubter)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if e.verdicts == nil || len(e.verdicts) > 100 { // a lease may name any doubter
		e.verdicts = map[whom]verdict{}
	}
	e.verdicts[who] = verdict{answered, err, time.Now()}
	return answered, err
}

func (e *ear) ask(ctx context.Context, link address.Link, ip, doubter netip.Addr) (bool, error) {
	stations, err := e.host.Neighbours(link, ip)
	if doubter.IsValid() {
		stations = append(stations, doubter)
	}
	var ports []probe.Port
	for _, station := range stations {
		port, failed := e.host.Open(link, station)
		if err = failed; err != nil {
			break
		}
		defer port.Close()
		ports = append(ports, port)
	}
	if len(ports) == 0 {
		return false, errors.Join(errNobodyToAsk, err)
	}
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
	return probe.Answered(ctx, ports, func() { _ = e.turn(ctx) }, own), nil
}
