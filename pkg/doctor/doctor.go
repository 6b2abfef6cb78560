// Package doctor walks the chain of a network boot without a machine: it asks as firmware does, follows what is offered
// up to the kernel, and says what is wrong. It takes nothing: no REQUEST, no address on this host, no frame from
// another Ethernet address than the interface's.
package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/frame"
)

// Options say what to ask.
type Options struct {
	Interface string
	// MAC is the machine's; nil: one that no machine has, the same each time on an interface.
	MAC  net.HardwareAddr
	Arch offer.Arch
	// Service is the address of the stack, where it is known.
	Service netip.Addr
	// CA verifies certificates as the machines do; nil: nobody is trusted, and an unknown CA is worth a note only.
	CA *x509.CertPool
	// Progress is told what is looked at. It may be nil.
	Progress func(what string)
	// Window is how long OFFERs are waited for. Default: 3 s.
	Window time.Duration
}

// Step is a question and what became of it.
type Step struct {
	Asked string  `json:"asked"`
	Of    string  `json:"of,omitempty"`
	Heard string  `json:"heard"`
	Took  float64 `json:"seconds"`
}

// Report is the result of a run.
type Report struct {
	Interface string    `json:"interface,omitempty"`
	MAC       string    `json:"mac,omitempty"`
	MadeUp    bool      `json:"made_up,omitempty"` // no machine has the MAC
	Arch      string    `json:"arch"`
	Findings  []Finding `json:"findings"` // the worst first
	Asked     []Step    `json:"asked"`
	Frames    int       `json:"frames"` // that were sent
	Seconds   float64   `json:"seconds"`
}

// Exit codes of a run by the worst finding.
const (
	Healthy = iota
	Warned
	Broken
	Blinded
)

// Exit is the exit code of a report. A fault that was found counts for more than a thing that could not be looked at.
func (r *Report) Exit() int {
	switch highest(r.Findings) {
	case Error:
		return Broken
	case Blind:
		return Blinded
	case Warning:
		return Warned
	}
	return Healthy
}

// run is a run under way.
type run struct {
	Options
	link  *link.Link
	began time.Time
	air   *surroundings
	// rivals are pairs of servers with boot data that is not the same.
	rivals []rival

	mu     sync.Mutex
	report Report
}

// window is the default of [Options.Window].
const window = 3 * time.Second

// Run asks. It ends early when ctx does, with what is known by then.
func Run(ctx context.Context, o Options) Report {
	r := &run{Options: o, began: time.Now()}
	if r.Progress == nil {
		r.Progress = func(string) {}
	}
	r.Window = cmp.Or(r.Window, window)
	r.report = Report{Interface: o.Interface, MadeUp: o.MAC == nil, Arch: o.Arch.Name}
	r.walk(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		r.report.Findings = append(r.report.Findings, found("stopped", "stopped before everything was looked at"))
	}
	if r.link != nil {
		r.report.Frames = r.link.Sent()
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	r.report.Findings = append([]Finding{}, unexplained(r.report.Findings)...) // in JSON never null
	slices.SortStableFunc(r.report.Findings, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return r.report
}

// walk goes the chain as far as it leads.
func (r *run) walk(ctx context.Context) {
	l, err := link.Open(r.Interface)
	if err != nil {
		r.blind(err)
		return
	}
	r.link = l
	defer func() { _ = l.Close() }()
	if r.MAC == nil {
		r.MAC = madeUp(l.MAC)
	}
	r.report.MAC = r.MAC.String()
	r.air = listen(l, r.MAC)
	defer r.air.end()
	heard := r.discover(ctx)
	way := r.judgeAnswers(ctx, heard)
	if way != nil && ctx.Err() == nil {
		r.follow(ctx, way)
	}
	r.judgeRivals(ctx, way, heard)
}

// blind says why the interface cannot be looked at.
func (r *run) blind(err error) {
	name := "no-interface"
	var why *link.Error
	if errors.As(err, &why) {
		name = map[link.Fault]string{
			link.Missing: "no-interface", link.Down: "interface-down", link.NoCarrier: "no-carrier", link.Port: "bridge-port",
			link.Alien: "not-ethernet", link.NoRights: "no-rights",
		}[why.Fault]
	}
	r.find(name, "%v", err)
}

// madeUp is a MAC that no machine has, and the same for an interface each time: a server that remembers whom it has
// offered an address remembers one.
func madeUp(own frame.MAC) net.HardwareAddr {
	h := fnv.New32a()
	_, _ = h.Write(own[:])
	s := h.Sum(nil)
	return net.HardwareAddr{0x02, 0x73, s[0], s[1], s[2], s[3]}
}

// find adds a finding, once.
func (r *run) find(name, format string, args ...any) {
	f := found(name, format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.report.Findings, f) {
		r.report.Findings = append(r.report.Findings, f)
	}
}

// step notes a question that began at a time.
func (r *run) step(since time.Time, asked, of, heard string) {
	s := Step{Clean(asked), Clean(of), Clean(heard), time.Since(since).Seconds()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Asked = append(r.report.Asked, s)
}
