package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/port"
	"github.com/tinkerbell/stack/pkg/doctor/web"
)

const (
	syslogPort = 514
	// metadataPath is asked by every agent first.
	metadataPath = "/2009-04-04/meta-data/instance-id"
)

// metadataPorts are where Hegel, and Tinkerbell's one binary, serve metadata.
var metadataPorts = []uint16{50061, 7080}

// services asks what the operating system and its agent will ask.
func (c *chain) services(ctx context.Context, a agent) {
	var all sync.WaitGroup
	if a.grpc != "" {
		all.Go(func() { c.tink(ctx, a) })
		if a.host.IsValid() {
			all.Go(func() { c.metadata(ctx, a.host) })
		}
	}
	if host, err := netip.ParseAddr(a.syslog); err == nil {
		all.Go(func() { c.log(ctx, host) })
	}
	all.Wait()
}

// logs asks the log servers of the OFFER.
func (c *chain) logs(ctx context.Context) {
	const most = 2
	for _, server := range c.order.addr.Log[:min(most, len(c.order.addr.Log))] {
		c.log(ctx, server)
	}
}

// log sends a line of syslog. Silence is what every log server answers.
func (c *chain) log(ctx context.Context, server netip.Addr) {
	const wait = time.Second
	to := netip.AddrPortFrom(server, syslogPort)
	began := time.Now()
	conn, err := c.way.DialContext(ctx, "udp", to.String())
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	var refused atomic.Bool
	defer c.link.Refused(c.addr, to, func() { refused.Store(true) })()
	// RFC 3164: local0, debug.
	_, err = fmt.Fprintf(conn, "<135>%s stack-doctor: asks whether somebody listens", time.Now().UTC().Format(time.Stamp))
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		_, err = conn.Read(make([]byte, 1))
	}
	said := "nothing, as it should be"
	if refused.Load() || err != nil && strings.Contains(err.Error(), "refused") {
		said = "port unreachable"
		c.find("log-server", "nothing listens on the log server %s (port unreachable)", to)
	}
	c.step(began, "syslog", to.String(), said)
}

// tink asks Tink Server as the agent does.
func (c *chain) tink(ctx context.Context, a agent) {
	to, err := netip.ParseAddrPort(a.grpc)
	if err != nil {
		c.find("url-unknown", "the agent is told the server %q, which was not asked: it is no address with port", a.grpc)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.Progress("asking Tink Server at " + a.grpc)
	began := time.Now()
	var connected atomic.Bool
	said, err := port.GRPC(ctx, func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := c.way.DialContext(ctx, network, to.String())
		connected.Store(err == nil)
		return conn, err
	}, to.String(), a.tls)
	if err != nil {
		said = err.Error()
	}
	c.step(began, "gRPC", a.grpc, said)
	if err == nil {
		return
	}
	switch text := err.Error(); {
	case !connected.Load() && c.whyReturned(to) != "":
		c.find("unreachable", "%s, where the agent asks for its work: %s", to, c.whyReturned(to))
	case strings.Contains(text, "refused"):
		c.find("port-closed", "nothing listens on %s, where the agent asks for its work (connection refused)", to)
	case a.tls && (strings.Contains(text, "first record does not look like a TLS") || strings.Contains(text, "tls:")):
		c.find("tls-refused", "the agent is told to speak TLS to %s, and it does not: %v", to, err)
	case !connected.Load():
		c.find("no-connection", "%s, where the agent asks for its work, does not answer when a connection is asked for", to)
	case errors.Is(err, context.DeadlineExceeded):
		c.find("waits-for-backend", "%s, where the agent asks for its work, takes the connection and does not answer", to)
	default:
		c.find("agent-port", "%s, where the agent asks for its work, is no gRPC server, or what is behind it is away: %v",
			to, err)
	}
}

// metadata asks for the machine's own, by its address, which is all that tells the server whose.
func (c *chain) metadata(ctx context.Context, host netip.Addr) {
	for _, p := range metadataPorts {
		u := &url.URL{Scheme: "http", Host: netip.AddrPortFrom(host, p).String(), Path: metadataPath}
		began := time.Now()
		a := c.client().Whole(ctx, u, begin)
		if errors.Is(a.Err, web.ErrRefused) {
			continue
		}
		said := fmt.Sprintf("%d, %q", a.Status, a.Body[:min(len(a.Body), 40)])
		if a.Err != nil {
			said = a.Err.Error()
		}
		c.step(began, "metadata", u.String(), said)
		switch {
		case a.Err != nil:
			c.judgeHTTP(document{u: u, what: "metadata", required: true}, &a)
		case a.Status == http.StatusBadGateway, a.Status == http.StatusServiceUnavailable,
			a.Status == http.StatusGatewayTimeout:
			c.find("no-hegel", "what is behind the metadata port %s does not answer (%d)", u.Host, a.Status)
		case a.Status == http.StatusNotFound:
			c.find("proxies-not-trusted", "asked from %s, which is offered to %s, %s knows no such machine (404): it "+
				"sees the "+
				"proxy's address in place of the machine's, or its Hardware object has no metadata", c.addr, c.MAC, u.Host)
		case a.Status == http.StatusOK && otherMAC(string(a.Body), c.MAC.String()):
			c.find("metadata-of-another", "asked from %s, %s answers for the machine %q: addresses are changed on the way",
				c.addr,
				u.Host, a.Body)
		}
		return
	}
}

// otherMAC tells whether an instance is named by a MAC that is another's.
func otherMAC(id, mac string) bool {
	parsed, err := net.ParseMAC(strings.TrimSpace(id))
	return err == nil && parsed.String() != mac
}
