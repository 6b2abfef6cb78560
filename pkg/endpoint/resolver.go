package endpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/tinkerbell/stack/internal/watch"
)

// Lifetimes of answers. With a lifetime of 0 each connection would need a lookup; with a very long one a backend's new
// address would never be found.
const (
	minTTL = time.Second
	maxTTL = 5 * time.Minute
)

// What glibc makes of resolv.conf(5): only the first name servers count, and its numbers have bounds.
const (
	maxServers  = 3
	maxTimeout  = 30 // seconds
	maxAttempts = 5
)

// ErrNotFound says that a name has no address, under itself or any name of the search path.
var ErrNotFound = errors.New("no such name")

// Resolver looks names up as the pod's resolv.conf says (the first three name servers in order or by turns, search
// path, ndots, timeout, attempts), with /etc/hosts first, and keeps each answer for as long as its records live. The Go
// resolver does not tell lifetimes, hence this one. It is safe for concurrent use; the files are read again when they
// change.
type Resolver struct {
	ResolvConf string           // default /etc/resolv.conf
	Hosts      string           // default /etc/hosts
	Port       int              // of the name servers; default 53
	Now        func() time.Time // default time.Now
	Logger     *slog.Logger     // nil discards

	mu    sync.Mutex
	conf  parsed[*nameServers]
	hosts parsed[map[string][]netip.Addr]
	cache map[string]answer
}

// nameServers are what a resolv.conf says.
type nameServers struct {
	dns.ClientConfig
	rotate bool
	turn   int // of the server that the next lookup asks first
}

type answer struct {
	addrs   []netip.Addr
	srv     []SRV
	expires time.Time
}

// SRV is one record of a service lookup (RFC 2782).
type SRV struct {
	Host     string
	Port     uint16
	Priority uint16
	Weight   uint16
}

// Lookup returns the addresses of a host, sorted, and their lifetime. The error wraps [ErrNotFound] when
// every name server agrees that there is none.
func (r *Resolver) Lookup(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, maxTTL, nil
	}
	hosts, err := r.hostsFile()
	if err != nil {
		return nil, 0, err
	}
	if addrs := hosts[strings.ToLower(strings.TrimSuffix(host, "."))]; len(addrs) > 0 {
		return addrs, 5 * time.Second, nil
	}
	got, ttl, err := r.cached("addr "+host, func(conf *dns.ClientConfig) (found answer, ttl time.Duration, err error) {
		err = search(conf.NameList(host), func(name string) error {
			found.addrs, ttl, err = r.addresses(ctx, conf, name)
			return err
		})
		return found, ttl, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("failed to look up %s: %w", host, err)
	}
	return got.addrs, ttl, nil
}

// LookupSRV returns the records of a service name such as _http._tcp.hegel.tink.svc.cluster.local, lowest
// priority first.
func (r *Resolver) LookupSRV(ctx context.Context, service string) ([]SRV, time.Duration, error) {
	got, ttl, err := r.cached("srv "+service, func(conf *dns.ClientConfig) (found answer, ttl time.Duration, err error) {
		err = search(conf.NameList(service), func(name string) error {
			found.srv, ttl, err = r.records(ctx, conf, name)
			return err
		})
		return found, ttl, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("failed to look up service %s: %w", service, err)
	}
	return got.srv, ttl, nil
}

// search asks for each name of a search path until one is found. A name that the server fails on (a broken zone in
// the search path, say) does not hide the names after it; a server that does not answer at all ends the search, since
// the others would only wait for it again.
func search(names []string, ask func(name string) error) error {
	failure := ErrNotFound
	for _, name := range names {
		err := ask(name)
		var said rcodeError
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrNotFound):
		case !errors.As(err, &said):
			return err
		default:
			failure = err
		}
	}
	return failure
}

// rcodeError is an answer that says neither yes nor no: SERVFAIL, REFUSED and the like (RFC 1035, section 4.1.1).
type rcodeError int

func (e rcodeError) Error() string { return dns.RcodeToString[int(e)] }

func (r *Resolver) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// cached returns a live answer or asks for a new one. Two routes that ask at the same moment both ask: rare, and
// cheaper than making one wait for the other's context.
func (r *Resolver) cached(
	key string, ask func(*dns.ClientConfig) (answer, time.Duration, error),
) (answer, time.Duration, error) {
	r.mu.Lock()
	got, ok := r.cache[key]
	r.mu.Unlock()
	if left := got.expires.Sub(r.now()); ok && left > 0 {
		return got, left, nil
	}
	conf, err := r.config()
	if err != nil {
		return answer{}, 0, err
	}
	got, ttl, err := ask(&conf)
	if err != nil {
		return answer{}, 0, err
	}
	ttl = min(max(ttl, minTTL), maxTTL)
	got.expires = r.now().Add(ttl)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache == nil {
		r.cache = map[string]answer{}
	}
	r.cache[key] = got
	return got, ttl, nil
}

// forget drops a host's or service's answers, for a caller that found them wrong.
func (r *Resolver) forget(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.cache["srv "+host].srv {
		delete(r.cache, "addr "+record.Host)
	}
	delete(r.cache, "addr "+host)
	delete(r.cache, "srv "+host)
}

// records asks for a service's records, sorted, lowest priority first.
func (r *Resolver) records(ctx context.Context, conf *dns.ClientConfig, name string) ([]SRV, time.Duration, error) {
	reply, err := r.exchange(ctx, conf, name, dns.TypeSRV)
	if err != nil {
		return nil, 0, err
	}
	var found []SRV
	ttl := maxTTL
	for _, rr := range reply.Answer {
		ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
		if srv, ok := rr.(*dns.SRV); ok && srv.Target != "." {
			found = append(found, SRV{srv.Target, srv.Port, srv.Priority, srv.Weight})
		}
	}
	if len(found) == 0 {
		return nil, 0, ErrNotFound
	}
	slices.SortFunc(found, func(a, b SRV) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	return found, ttl, nil
}

// addresses asks for A and AAAA at once. One family's failure does not spoil the other's answer: there are name
// servers that answer SERVFAIL to AAAA.
func (r *Resolver) addresses(
	ctx context.Context, conf *dns.ClientConfig, name string,
) ([]netip.Addr, time.Duration, error) {
	type result struct {
		reply *dns.Msg
		err   error
	}
	results := make(chan result, 2)
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		go func() {
			reply, err := r.exchange(ctx, conf, name, kind)
			results <- result{reply, err}
		}()
	}
	var addrs []netip.Addr
	var failure error
	ttl := maxTTL
	for range 2 {
		got := <-results
		if got.err != nil {
			failure = worse(failure, got.err)
			continue
		}
		for _, rr := range got.reply.Answer {
			ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
			var ip net.IP
			switch record := rr.(type) {
			case *dns.A:
				ip = record.A
			case *dns.AAAA:
				ip = record.AAAA
			}
			if addr, ok := netip.AddrFromSlice(ip); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	switch {
	case len(addrs) > 0:
		slices.SortFunc(addrs, netip.Addr.Compare)
		return slices.Compact(addrs), ttl, nil
	case failure != nil:
		return nil, 0, failure
	default:
		return nil, 0, ErrNotFound
	}
}

// exchange asks the name servers in order until one answers with a success or "no such name". A failure that a server
// has answered with is not hidden by another server's silence. An answer too long for UDP is asked for again over TCP.
func (r *Resolver) exchange(ctx context.Context, conf *dns.ClientConfig, name string, kind uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), kind)
	query.SetEdns0(1232, false)
	client := &dns.Client{Timeout: time.Duration(conf.Timeout) * time.Second}
	var failure error
	for range conf.Attempts {
		for _, server := range conf.Servers {
			server = net.JoinHostPort(server, conf.Port)
			query.Id = dns.Id()
			reply, _, err := client.ExchangeContext(ctx, query, server)
			if err == nil && reply.Truncated {
				stream := &dns.Client{Net: "tcp", Timeout: client.Timeout}
				reply, _, err = stream.ExchangeContext(ctx, query, server)
			}
			switch {
			case err != nil:
			case len(reply.Question) != 1 || !strings.EqualFold(reply.Question[0].Name, query.Question[0].Name):
				err = errors.New("answer to another question")
			case reply.Rcode == dns.RcodeSuccess:
				return reply, nil
			case reply.Rcode == dns.RcodeNameError:
				return nil, ErrNotFound
			default:
				err = rcodeError(reply.Rcode)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			failure = worse(failure, fmt.Errorf("failed to ask name server %s: %w", server, err))
		}
	}
	return nil, failure
}

// worse returns the failure that says more about a name: one that a server answered with rather than its silence,
// either rather than "no such name", and else the later one.
func worse(a, b error) error {
	rank := func(err error) int {
		var said rcodeError
		switch {
		case err == nil:
			return 0
		case errors.Is(err, ErrNotFound):
			return 1
		case errors.As(err, &said):
			return 3
		default:
			return 2
		}
	}
	if rank(a) > rank(b) {
		return a
	}
	return b
}

// config returns what resolv.conf says now, with its servers in the order in which this lookup asks them.
func (r *Resolver) config() (dns.ClientConfig, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.ResolvConf
	if path == "" {
		path = "/etc/resolv.conf"
	}
	conf, err := r.conf.read(path, func(text []byte) (*nameServers, error) { return r.parseConf(path, text) })
	if err != nil {
		return dns.ClientConfig{}, err
	}
	turned := conf.ClientConfig
	if conf.rotate {
		turned.Servers = slices.Concat(conf.Servers[conf.turn:], conf.Servers[:conf.turn])
		conf.turn = (conf.turn + 1) % len(conf.Servers)
	}
	return turned, nil
}

// parseConf reads resolv.conf(5) as glibc does. The library leaves rotate and the upper bounds out.
func (r *Resolver) parseConf(path string, text []byte) (*nameServers, error) {
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("failed to parse %s: %w", path, err)
	}
	conf.Servers = slices.DeleteFunc(conf.Servers, func(server string) bool {
		_, err := netip.ParseAddr(server)
		return err != nil
	})
	if len(conf.Servers) == 0 {
		conf.Servers = []string{"127.0.0.1"}
	}
	if len(conf.Servers) > maxServers {
		if r.Logger != nil {
			r.Logger.Warn("only the first three name servers are asked", "file", path, "left_out", conf.Servers[maxServers:])
		}
		conf.Servers = conf.Servers[:maxServers]
	}
	conf.Timeout, conf.Attempts = min(conf.Timeout, maxTimeout), min(conf.Attempts, maxAttempts)
	if r.Port != 0 {
		conf.Port = strconv.Itoa(r.Port)
	}
	servers := &nameServers{ClientConfig: *conf}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == "options" {
			servers.rotate = servers.rotate || slices.Contains(words, "rotate")
		}
	}
	return servers, nil
}

func (r *Resolver) hostsFile() (map[string][]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := r.Hosts
	if path == "" {
		path = "/etc/hosts"
	}
	hosts, err := r.hosts.read(path, parseHosts)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return hosts, err
}

// parseHosts reads hosts(5). Lines that are none are skipped, as every reader of that file does.
func parseHosts(text []byte) (map[string][]netip.Addr, error) {
	hosts := map[string][]netip.Addr{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		for _, name := range fields[1:] {
			name = strings.ToLower(strings.TrimSuffix(name, "."))
			hosts[name] = append(hosts[name], addr)
		}
	}
	return hosts, nil
}

// parsed is the value of a file, which is parsed again when its text changes.
type parsed[T any] struct {
	file  watch.Files
	value T
	err   error
}

func (p *parsed[T]) read(path string, parse func([]byte) (T, error)) (T, error) {
	p.file.Paths = []string{path}
	texts, changed, err := p.file.Read()
	if err != nil {
		var none T
		return none, err
	}
	if changed {
		p.value, p.err = parse(texts[0])
	}
	return p.value, p.err
}
