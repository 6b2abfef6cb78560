package machines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// machine is one machine under way.
type machine struct {
	*fleet
	Member
	number  int
	mac     net.HardwareAddr
	client  *http.Client
	retries map[string]int
	wrong   []string

	step     string
	progress *progress

	lease  netboot.Lease
	script netboot.Script
	config installer.Config // what the kernel's command line says
	tink   *tink.Client
	hold   context.CancelFunc // of the stream
	stream chan error         // gets the stream's end
	work   tink.Action
}

// steps are what a machine does, one after the other.
var steps = []struct {
	name string
	do   func(*machine, context.Context) error
}{
	{StepDiscover, func(m *machine, ctx context.Context) error { return m.dhcp(ctx, netboot.PXE) }},
	{StepTFTP, (*machine).tftp},
	{StepIPXE, func(m *machine, ctx context.Context) error { return m.dhcp(ctx, netboot.IPXE) }},
	{StepScript, (*machine).readScript},
	{StepKernel, func(m *machine, ctx context.Context) error { return m.download(ctx, m.script.Kernel, m.kernel) }},
	{StepInitramfs, func(m *machine, ctx context.Context) error { return m.download(ctx, m.script.Initrd, m.initramfs) }},
	{StepLease, func(m *machine, ctx context.Context) error { return m.dhcp(ctx, netboot.System) }},
	{StepSyslog, func(m *machine, ctx context.Context) error { return m.log(ctx, "begins") }},
	{StepMetadata, (*machine).metadata},
	{StepWorkflow, (*machine).workflow},
	{StepArtifact, (*machine).artifact},
	{StepReport, (*machine).report},
}

func newMachine(f *fleet, i int) (*machine, error) {
	m := &machine{fleet: f, number: i, Member: f.Members[i], retries: map[string]int{}}
	m.client = &http.Client{Transport: &http.Transport{DialContext: m.dial, DisableCompression: true}}
	var err error
	m.mac, err = net.ParseMAC(m.MAC)
	return m, err
}

// run does the steps. The error names the one that failed.
func (m *machine) run(ctx context.Context) error {
	for _, s := range steps {
		m.step = s.name
		if err := m.insist(ctx, s.do); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		m.say(Line{Passed: &Passed{Machine: m.number, Step: s.name, Seconds: m.since()}})
	}
	return nil
}

// insist tries a step until it works, or nothing has moved for the plan's patience.
func (m *machine) insist(ctx context.Context, do func(*machine, context.Context) error) error {
	p, ctx, end := newProgress(ctx, m.Patience)
	defer end()
	m.progress = p
	for {
		attempt, endAttempt := p.begin(ctx)
		err := do(m, attempt)
		endAttempt()
		if err == nil {
			return nil
		}
		if errors.Is(err, errWrong) {
			m.wrong = append(m.wrong, m.step+": "+err.Error())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, %d bytes had come; last: %w", context.Cause(ctx), p.far, err)
		case <-time.After(pause):
		}
		m.again()
	}
}

// again counts what had to be done once more.
func (m *machine) again() { m.retries[m.step]++ }

// dial connects from the machine's address.
func (m *machine) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	if network == "udp" {
		dialer.LocalAddr = &net.UDPAddr{IP: m.IP.AsSlice()}
	} else {
		dialer.LocalAddr = &net.TCPAddr{IP: m.IP.AsSlice()}
	}
	return dialer.DialContext(ctx, network, addr)
}

// dialTink makes a client of Tink Server.
func (m *machine) dialTink() (*tink.Client, error) {
	return tink.Dial(m.config.Tink, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return m.dial(ctx, "tcp", addr)
	}))
}

// close gives up what is open.
func (m *machine) close() {
	m.client.CloseIdleConnections()
	m.leave()
}

// leave closes the stream and the connection to Tink Server.
func (m *machine) leave() {
	if m.tink == nil {
		return
	}
	m.hold()
	_ = m.tink.Close()
	<-m.stream
	m.tink = nil
}
