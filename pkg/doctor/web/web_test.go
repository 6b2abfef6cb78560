package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// way leads every connection to one server, and is told which were asked for.
type way struct {
	to    string
	names string // of the DNS server
	asked []string
}

func (w *way) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.asked = append(w.asked, address)
	if network == "udp" {
		return (&net.Dialer{}).DialContext(ctx, network, w.names)
	}
	return (&net.Dialer{}).DialContext(ctx, network, w.to)
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAnswersAreToldApart(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/whole", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" || r.Header.Get("Authorization") != "" {
			t.Errorf("it asks with %v", r.Header)
		}
		http.ServeContent(w, r, "", time.Now(), strings.NewReader(strings.Repeat("x", 5000)))
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/about", http.StatusFound) })
	mux.HandleFunc("/about", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/far/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://user:secret@127.0.0.1:22/", http.StatusFound)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "file:///etc/shadow")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("only this"))
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for line := make([]byte, 4096); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/mute", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	closed := httptest.NewServer(nil)
	nobody := closed.Listener.Addr().String()
	closed.Close()
	here := server.Listener.Addr().String()
	for name, test := range map[string]struct {
		url, to string
		err     error
		says    string
		bytes   int
	}{
		"whole":                    {"http://192.0.2.1/whole", here, nil, "", 1000},
		"redirects in a circle":    {"http://192.0.2.1/round", here, ErrLoop, "/about", 0},
		"redirects without end":    {"http://192.0.2.1/far/", here, ErrTooFar, "", 0},
		"a redirect to this host":  {"http://192.0.2.1/away", here, ErrForeign, "127.0.0.1", 0},
		"a redirect to a file":     {"http://192.0.2.1/file", here, ErrScheme, "file", 0},
		"shorter than it is said":  {"http://192.0.2.1/short", here, io.ErrUnexpectedEOF, "9 bytes", 9},
		"without end":              {"http://192.0.2.1/endless", here, nil, "", 1000},
		"without a word":           {"http://192.0.2.1/mute", here, ErrSilent, "", 0},
		"without a body":           {"http://192.0.2.1/slow", here, ErrSilent, "0 bytes", 0},
		"nobody listens":           {"http://192.0.2.1/whole", nobody, ErrRefused, "", 0},
		"plain where TLS is asked": {"https://192.0.2.1/whole", here, ErrPlain, "", 0},
		"a scheme of firmware's":   {"nfs://192.0.2.1/whole", here, ErrScheme, "nfs", 0},
		"the cloud's metadata":     {"http://169.254.169.254/", here, ErrForeign, "", 0},
		"no name server":           {"http://boot.lab/", here, ErrName, "no name server is offered", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &way{to: test.to}
			client := Client{Way: w, Patience: 300 * time.Millisecond}
			a := client.Get(t.Context(), parsed(t, test.url), 1000)
			if !errors.Is(a.Err, test.err) || !strings.Contains(fmt.Sprint(a.Err), test.says) || len(a.Body) != test.bytes {
				t.Errorf("%v, %d bytes", a.Err, len(a.Body))
			}
			if most := mostHops + 1; len(w.asked) > most {
				t.Errorf("%d connections", len(w.asked))
			}
		})
	}
	t.Run("tail", func(t *testing.T) {
		client := Client{Way: &way{to: here}, Patience: time.Second}
		if a := client.Tail(t.Context(), parsed(t, "http://192.0.2.1/whole"), 5000, 512); a.Err != nil || len(a.Body) != 512 || !a.Part {
			t.Errorf("%+v", a)
		}
		if a := client.Head(t.Context(), parsed(t, "http://192.0.2.1/whole")); a.Err != nil || a.Status != 200 || a.Size != 5000 {
			t.Errorf("%+v", a)
		}
	})
}

// Names are asked for at the name servers that were offered.
func TestNames(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		answer := new(dns.Msg).SetReply(r)
		switch q := r.Question[0]; {
		case q.Name != "boot.lab.":
			answer.Rcode = dns.RcodeNameError
		default:
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 7)}}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	defer func() { _ = server.Shutdown() }()
	for _, test := range []struct{ host, want string }{{"boot.lab", "192.0.2.7"}, {"other.lab", "NameError"}} {
		client := Client{
			Way: &way{names: conn.LocalAddr().String()}, DNS: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, Patience: 2 * time.Second,
		}
		at, err := client.resolve(t.Context(), parsed(t, "http://"+test.host+"/"))
		if got := fmt.Sprint(at.Addr(), err); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s", test.host, got)
		}
	}
}

// issue makes a certificate, by itself where by is nil.
func issue(t *testing.T, template, by *x509.Certificate, byKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by, byKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}

func TestCertificatesAreJudged(t *testing.T) {
	now := time.Now()
	authority := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-1000 * time.Hour), NotAfter: now.Add(1000 * time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
	}
	root, rootKey := issue(t, authority("root"), nil, nil)
	between, betweenKey := issue(t, authority("between"), root, rootKey)
	other, _ := issue(t, authority("other"), nil, nil)
	leaf := func(from, until time.Time) *x509.Certificate {
		made, _ := issue(t, &x509.Certificate{
			SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: until, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 2)},
		}, between, betweenKey)
		return made
	}
	good := leaf(now.Add(-time.Minute), now.Add(time.Hour))
	pool := func(c *x509.Certificate) *x509.CertPool {
		p := x509.NewCertPool()
		p.AddCert(c)
		return p
	}
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		ca    *x509.CertPool
		host  string
		want  Fault
	}{
		"good":                       {[]*x509.Certificate{good, between}, pool(root), "192.0.2.2", Good},
		"made in another zone":       {[]*x509.Certificate{good}, nil, "192.0.2.2", Good},
		"over":                       {[]*x509.Certificate{leaf(now.Add(-48*time.Hour), now.Add(-time.Hour)), between}, pool(root), "192.0.2.2", Expired},
		"not yet":                    {[]*x509.Certificate{leaf(now.Add(time.Hour), now.Add(48*time.Hour)), between}, pool(root), "192.0.2.2", NotYet},
		"another CA":                 {[]*x509.Certificate{good, between}, pool(other), "192.0.2.2", UnknownCA},
		"what is between is missing": {[]*x509.Certificate{good}, pool(root), "192.0.2.2", UnknownCA},
		"another name":               {[]*x509.Certificate{good, between}, pool(root), "192.0.2.9", WrongName},
	} {
		_, got := Judge(&tls.ConnectionState{PeerCertificates: test.chain}, parsed(t, "https://"+test.host+"/"), test.ca, now)
		if got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// A client of TLS 1.2 is told of a server that takes newer versions alone, and reads on by one of these.
func TestNewTLSAloneIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		least, client uint16
		closes        int // so many connections of older clients are closed in place of an alert
		tooNew        bool
	}{
		"TLS 1.2, too":                     {tls.VersionTLS12, tls.VersionTLS12, 0, false},
		"TLS 1.3 alone":                    {tls.VersionTLS13, tls.VersionTLS12, 0, true},
		"TLS 1.3 alone and a newer client": {tls.VersionTLS13, 0, 0, false},
		"TLS 1.3 alone, without an alert":  {tls.VersionTLS13, tls.VersionTLS12, 2, true},
		"a connection is closed by chance": {tls.VersionTLS12, tls.VersionTLS12, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("here"))
			}))
			var closed atomic.Int32
			server.TLS = &tls.Config{MinVersion: test.least, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				if !slices.Contains(h.SupportedVersions, tls.VersionTLS13) && int(closed.Add(1)) <= test.closes {
					return nil, h.Conn.Close()
				}
				return nil, nil //nolint:nilnil // the server's own
			}}
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
			server.StartTLS()
			t.Cleanup(server.Close)
			client := Client{Way: &way{to: server.Listener.Addr().String()}, Patience: 5 * time.Second, MostTLS: test.client}
			a := client.Get(t.Context(), parsed(t, "https://192.0.2.1/"), 4)
			if a.Err != nil || string(a.Body) != "here" || a.TLS == nil || (a.TooNew == "192.0.2.1") != test.tooNew ||
				a.Closes != (test.closes > 1) {
				t.Errorf("%v, %q, too new: %q, closes: %v", a.Err, a.Body, a.TooNew, a.Closes)
			}
		})
	}
}

func TestAnswerTellsStatusOrReason(t *testing.T) {
	for want, a := range map[string]Answer{"502": {Status: 502}, ErrLoop.Error(): {Status: 302, Err: ErrLoop}} {
		if got := a.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
