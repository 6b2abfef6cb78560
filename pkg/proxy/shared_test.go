package proxy

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/route"
)

// policy is the TLS of a route under test.
type policy struct {
	name     string // of the route; its host is name.example
	ca       string // of the clients; empty takes all of them
	min13    bool
	firmware bool // also ciphers without forward secrecy
	plain    bool // no TLS at all
	host     string
}

func (p policy) hostname() string {
	if p.host != "" {
		return p.host
	}
	return p.name + ".example"
}

// sharedPort is a port with several routes, and what its clients need.
type sharedPort struct {
	asked  bool // whether the last client was asked for a certificate
	dir    string
	listen route.Listen
	owns   map[string]tls.Certificate // of clients, by the CA they come from
	routes []policy
	answer string // the backend of all
	proxy  testProxy
}

func newSharedPort(t *testing.T, routes ...policy) *sharedPort {
	t.Helper()
	p := &sharedPort{dir: t.TempDir(), listen: free(t), owns: map[string]tls.Certificate{}, routes: routes}
	(&outside{dir: p.dir}).certificate(t)
	for name, text := range rsaPair() {
		if err := os.WriteFile(filepath.Join(p.dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, ca := range []string{"one", "two"} {
		p.owns[ca] = p.authority(t, ca)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	p.answer = strings.TrimPrefix(server.URL, "http://")
	p.proxy = start(t, Options{Table: p.table(t)})
	ready(t, p.proxy)
	return p
}

// rsaPair is a certificate for clients of old ciphers: to make its key takes a while.
var rsaPair = sync.OnceValue(func() map[string][]byte {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"*.orch.example.org"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return map[string][]byte{
		"rsa.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"rsa.key": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
	}
})

// authority writes a CA's certificate, and makes one of it for a client.
func (p *sharedPort) authority(t *testing.T, name string) tls.Certificate {
	t.Helper()
	sign := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if parent == nil {
			parent, by = template, key
		}
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	ca := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca.Subject.CommonName = name
	der, key := sign(ca, nil, nil)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(p.dir, name+".crt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	own, ownKey := sign(leaf, ca, key)
	return tls.Certificate{Certificate: [][]byte{own}, PrivateKey: ownKey}
}

func (p *sharedPort) table(t *testing.T) route.Table {
	t.Helper()
	var text strings.Builder
	text.WriteString("routes:\n")
	for _, r := range p.routes {
		fmt.Fprintf(&text, "- name: %s\n  protocol: http\n  listen: %s\n  hosts: %s\n  backends: %s\n  accessLog: off\n",
			r.name, p.listen, r.hostname(), p.answer)
		if r.plain {
			continue
		}
		fmt.Fprintf(&text, "  tls:\n    certificates:\n    - {certificate: %[1]q, key: %[2]q}\n    - {certificate: %[3]q, key: %[4]q}\n",
			p.dir+"/tls.crt", p.dir+"/tls.key", p.dir+"/rsa.crt", p.dir+"/rsa.key")
		if r.ca != "" {
			fmt.Fprintf(&text, "    clientCA: %q\n", p.dir+"/"+r.ca+".crt")
		}
		if r.min13 {
			fmt.Fprint(&text, "    minVersion: \"1.3\"\n")
		}
		if r.firmware {
			fmt.Fprint(&text, "    firmwareCiphers: true\n")
		}
	}
	made, err := route.Parse([]byte(text.String()), route.Defaults{Drain: setting.Duration(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// reload puts other routes in force.
func (p *sharedPort) reload(t *testing.T, routes ...policy) {
	t.Helper()
	p.routes = routes
	p.proxy.apply(t, p.table(t))
}

// caller is how a client connects.
type caller struct {
	sni      string
	own      string // the CA that its certificate comes from; empty is none
	max12    bool
	firmware bool // only a cipher without forward secrecy
	protocol string
	sessions tls.ClientSessionCache
}

// anySession is a client that resumes the session it has whatever the server's name.
type anySession struct{ last *tls.ClientSessionState }

func (s *anySession) Get(string) (*tls.ClientSessionState, bool) { return s.last, s.last != nil }
func (s *anySession) Put(_ string, session *tls.ClientSessionState) {
	if session != nil {
		s.last = session
	}
}

// call is a connection of a client.
type call struct {
	conn   *tls.Conn
	reader *bufio.Reader
	two    *http.ClientConn
}

func (p *sharedPort) dial(t *testing.T, c caller) (*call, error) {
	t.Helper()
	config := &tls.Config{
		InsecureSkipVerify: true, ServerName: c.sni, NextProtos: []string{c.protocol}, ClientSessionCache: c.sessions,
	}
	own := p.owns[c.own] // whatever the server asks for; the zero certificate is none
	p.asked = false
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		p.asked = true
		return &own, nil
	}
	if c.max12 {
		config.MaxVersion = tls.VersionTLS12
	}
	if c.firmware {
		config.MaxVersion = tls.VersionTLS12
		config.CipherSuites = []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}
	}
	conn, err := net.Dial("tcp", p.listen.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	secured := tls.Client(conn, config)
	if err := secured.Handshake(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	t.Cleanup(func() { _ = secured.Close() })
	made := &call{conn: secured, reader: bufio.NewReader(secured)}
	if c.protocol == "h2" {
		transport := &http.Transport{
			ForceAttemptHTTP2: true,
			DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return secured, nil },
		}
		if made.two, err = transport.NewClientConn(t.Context(), "https", p.listen.String()); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// ask is the status of an answer; 0 where the connection was refused, or has ended.
func (c *call) ask(host string) int {
	r, err := http.NewRequest(http.MethodGet, "https://"+host+"/x", nil)
	if err != nil {
		panic(err)
	}
	var answer *http.Response
	if c.two != nil {
		answer, err = c.two.RoundTrip(r)
	} else if err = r.Write(c.conn); err == nil {
		answer, err = http.ReadResponse(c.reader, r)
	}
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer.StatusCode
}

// of is the route of a name; -1 is none.
func (p *sharedPort) of(host string) int {
	host = strings.TrimSuffix(strings.ToLower(strings.TrimSuffix(host, ":443")), ".")
	return slices.IndexFunc(p.routes, func(r policy) bool { return r.hostname() == host })
}

// reached is the route whose TLS a client gets, and -1 as used where it names a server that no route is for.
func (p *sharedPort) reached(c caller) (by policy, used int) {
	used = p.of(c.sni)
	if c.sni == "" {
		used = max(p.of("127.0.0.1"), 0) // where it connected to
	}
	return p.routes[max(used, 0)], used
}

// want is the status that a client is to get: worked out from the policies alone.
func (p *sharedPort) want(c caller, host string) int {
	by, used := p.reached(c)
	if by.min13 && c.max12 || by.ca != "" && by.ca != c.own {
		return 0
	}
	switch target := p.of(host); {
	case target < 0:
		return http.StatusNotFound
	case target != used:
		return http.StatusMisdirectedRequest
	default:
		return http.StatusOK
	}
}

// The TLS of a route holds for each request that reaches it: with every server name and none, client's certificate,
// version, protocol, and for every host that is asked for on the connection, whichever route comes first.
func TestTLSOfEachRouteHolds(t *testing.T) {
	open, closed, other := policy{name: "open"}, policy{name: "closed", ca: "one", min13: true}, policy{name: "other", ca: "two"}
	for name, routes := range map[string][]policy{
		"open first": {open, closed, other}, "closed first": {closed, open, other},
		"an address": {open, closed, {name: "here", host: "127.0.0.1", ca: "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSharedPort(t, routes...)
			for _, sni := range []string{"", "open.example", "closed.example", "CLOSED.Example", "other.example", "unknown.example"} {
				for _, own := range []string{"", "one", "two"} {
					for _, max12 := range []bool{false, true} {
						for _, protocol := range []string{"http/1.1", "h2"} {
							c := caller{sni: sni, own: own, max12: max12, protocol: protocol}
							p.askAll(t, c)
						}
					}
				}
			}
		})
	}
}

func (p *sharedPort) askAll(t *testing.T, c caller) {
	t.Helper()
	hosts := []string{"open.example", "closed.example", "Closed.EXAMPLE.:443", "other.example", "unknown.example", "127.0.0.1"}
	made, err := p.dial(t, c)
	// A route beside one with client certificates asks for none: old iPXE fails at the mere question.
	if by, _ := p.reached(c); c.sessions == nil && !(by.min13 && c.max12) && p.asked != (by.ca != "") {
		t.Errorf("%+v was asked for a certificate: %t", c, p.asked)
	}
	for _, host := range hosts {
		got := 0
		if err == nil {
			got = made.ask(host)
		}
		if want := p.want(c, host); got != want {
			t.Errorf("%+v asks for %s: got %d, want %d", c, host, got, want)
		}
	}
	if err == nil {
		_ = made.conn.Close()
	}
}

// A session is resumed at its own route only: one that a route let in, or one from before a reload, opens nothing.
func TestSessionsStayWithTheirRoute(t *testing.T) {
	routes := []policy{{name: "open"}, {name: "closed", ca: "one"}, {name: "other", ca: "two"}}
	p := newSharedPort(t, routes...)
	for _, max12 := range []bool{false, true} {
		prime := func(r policy) *anySession {
			sessions := &anySession{}
			made, err := p.dial(t, caller{sni: r.hostname(), own: r.ca, max12: max12, protocol: "http/1.1", sessions: sessions})
			if err != nil {
				t.Fatal(err)
			}
			if code := made.ask(r.hostname()); code != http.StatusOK || sessions.last == nil {
				t.Fatalf("%s: got %d, a session: %v", r.name, code, sessions.last != nil)
			}
			_ = made.conn.Close()
			return sessions
		}
		for _, from := range routes {
			for _, to := range append(routes, policy{name: "unnamed"}) {
				c := caller{sni: to.hostname(), max12: max12, protocol: "http/1.1", sessions: prime(from)}
				if to.name == "unnamed" {
					c.sni = ""
				}
				for _, host := range []string{"open.example", "closed.example", "other.example"} {
					made, err := p.dial(t, c)
					got, resumed := 0, false
					if err == nil {
						if got = made.ask(host); got != 0 {
							resumed = made.conn.ConnectionState().DidResume
						}
						_ = made.conn.Close()
					}
					same := from.name == to.name || to.name == "unnamed" && from.name == routes[0].name
					want := p.want(c, host)
					if same { // it has shown its certificate before
						with := c
						with.own = from.ca
						want = p.want(with, host)
					}
					if got != want || resumed && !same {
						t.Errorf("TLS 1.2: %v, from %s to %s for %s: got %d, resumed %v; want %d", max12, from.name, to.name, host, got, resumed, want)
					}
					c.sessions = prime(from) // of TLS 1.3, a ticket is for once
				}
			}
		}
		sessions := prime(routes[0])
		made, err := p.dial(t, caller{sni: "open.example", max12: max12, protocol: "http/1.1", sessions: sessions})
		if err != nil || made.ask("open.example") != http.StatusOK || !made.conn.ConnectionState().DidResume {
			t.Errorf("TLS 1.2: %v: a session is not resumed at its own route: %v", max12, err)
		}
		// Behind a reload that asks for a certificate, or another version.
		for _, tightened := range []policy{{name: "open", ca: "one"}, {name: "open", ca: "two"}, {name: "open", min13: true}} {
			c := caller{sni: "open.example", max12: max12, protocol: "http/1.1", sessions: prime(routes[0])}
			p.reload(t, append([]policy{tightened}, routes[1:]...)...)
			got := 0
			if made, err := p.dial(t, c); err == nil {
				got = made.ask("open.example")
			}
			if want := p.want(c, "open.example"); got != want {
				t.Errorf("%+v with a session of before: got %d, want %d", tightened, got, want)
			}
			p.reload(t, routes...)
		}
	}
}

// A reload holds for connections that are open, too: what the route would not let in any more is refused and ended, all
// else goes on.
func TestReloadHoldsForOpenConnections(t *testing.T) {
	other := policy{name: "other"}
	for name, test := range map[string]struct {
		before, after policy
		call          caller
		want          int
	}{
		"nothing changes":                 {policy{}, policy{}, caller{}, 200},
		"a client CA comes":               {policy{}, policy{ca: "one"}, caller{own: "one"}, 421},
		"a client CA goes":                {policy{ca: "one"}, policy{}, caller{own: "one"}, 200},
		"another client CA":               {policy{ca: "one"}, policy{ca: "two"}, caller{own: "one"}, 421},
		"version 1.3, on 1.2":             {policy{}, policy{min13: true}, caller{max12: true}, 421},
		"version 1.3, on 1.3":             {policy{}, policy{min13: true}, caller{}, 200},
		"version 1.2 again":               {policy{min13: true}, policy{}, caller{}, 200},
		"ciphers of firmware, not used":   {policy{firmware: true}, policy{}, caller{max12: true}, 200},
		"ciphers of firmware, used":       {policy{firmware: true}, policy{}, caller{firmware: true}, 421},
		"the same CA and another version": {policy{ca: "one"}, policy{ca: "one", min13: true}, caller{own: "one"}, 200},
	} {
		for _, protocol := range []string{"http/1.1", "h2"} {
			if test.call.firmware && protocol == "h2" {
				continue // which forbids such ciphers itself (RFC 9113, section 9.2.2)
			}
			for _, first := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", name, protocol, first), func(t *testing.T) {
					t.Parallel()
					before, after := test.before, test.after
					before.name, after.name = "it", "it"
					order := func(it policy) []policy {
						if first {
							return []policy{it, other}
						}
						return []policy{other, it}
					}
					p := newSharedPort(t, order(before)...)
					c := test.call
					c.sni, c.protocol = "it.example", protocol
					made, err := p.dial(t, c)
					if err != nil {
						t.Fatal(err)
					}
					if code := made.ask("it.example"); code != http.StatusOK {
						t.Fatalf("got %d", code)
					}
					p.reload(t, order(after)...)
					if code := made.ask("it.example"); code != test.want {
						t.Errorf("behind the reload: got %d, want %d", code, test.want)
					}
					if test.want == http.StatusOK {
						if code := made.ask("it.example"); code != http.StatusOK {
							t.Errorf("once more: got %d", code)
						}
						return
					}
					if code := made.ask("it.example"); code != 0 && code != http.StatusMisdirectedRequest {
						t.Errorf("once more: got %d", code)
					}
				})
			}
		}
	}
}

// The file of the client CA is exchanged under an open connection.
func TestExchangedClientCAHoldsAtOnce(t *testing.T) {
	p := newSharedPort(t, policy{name: "it", ca: "one"})
	made, err := p.dial(t, caller{sni: "it.example", own: "one", protocol: "http/1.1"})
	if err != nil {
		t.Fatal(err)
	}
	if code := made.ask("it.example"); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "two.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "one.crt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the certificate is of another name", func() bool {
		code := made.ask("it.example")
		if code != http.StatusOK && code != http.StatusMisdirectedRequest {
			t.Fatalf("got %d", code)
		}
		return code == http.StatusMisdirectedRequest
	})
}

// A connection without TLS does not reach a route that has TLS since a reload.
func TestReloadToTLS(t *testing.T) {
	p := newSharedPort(t, policy{name: "it", plain: true})
	conn, err := net.Dial("tcp", p.listen.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	reader := bufio.NewReader(conn)
	ask := func() int {
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: it.example\r\n\r\n")
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	if code := ask(); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	p.reload(t, policy{name: "it", ca: "one"})
	if code := ask(); code != http.StatusMisdirectedRequest && code != 0 {
		t.Errorf("behind the reload: got %d", code)
	}
}
