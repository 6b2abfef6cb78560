// Package nameserver is the DNS server of labs, tests and soaks. It answers from a zone that may change at any time.
package nameserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Zone is what a server answers. Names are in lower case, without the last dot.
type Zone struct {
	Addresses map[string][]netip.Addr
	// Ports are the SRV records of a name that has addresses: "_http._tcp" and the port.
	Ports map[string]map[string]uint16
	// TTL is how long answers live.
	TTL time.Duration
	// Silent has the server answer nothing.
	Silent bool
}

// Server answers by UDP and TCP.
type Server struct {
	zone    func() (Zone, error)
	log     io.Writer
	servers [2]*dns.Server
	ended   chan error
}

// Serve begins to answer on an address and port. The zone is asked for at each query, so that a change counts from the
// next query on. Each answer is a line of the log, which may be nil.
func Serve(addr string, zone func() (Zone, error), log io.Writer) (*Server, error) {
	if log == nil {
		log = io.Discard
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("failed to start name server: %w", err)
	}
	// Of TCP's ports many are taken by connections, of UDP's few.
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("failed to start name server: %w", errors.Join(err, tcp.Close()))
	}
	s := &Server{zone: zone, log: log, ended: make(chan error, 2)}
	var started sync.WaitGroup
	for i, server := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
		server.Handler, server.NotifyStartedFunc = dns.HandlerFunc(s.answer), started.Done
		s.servers[i] = server
		started.Add(1)
		go func() { s.ended <- server.ActivateAndServe() }()
	}
	started.Wait()
	return s, nil
}

// Addr is where it answers.
func (s *Server) Addr() string { return s.servers[0].PacketConn.LocalAddr().String() }

// Wait waits until the server fails or is closed.
func (s *Server) Wait() error { return <-s.ended }

// Close ends the server.
func (s *Server) Close() error {
	return errors.Join(s.servers[0].Shutdown(), s.servers[1].Shutdown(), <-s.ended, <-s.ended)
}

func (s *Server) answer(w dns.ResponseWriter, query *dns.Msg) {
	zone, err := s.zone()
	if err != nil {
		fmt.Fprintf(s.log, "query from %s: %v\n", w.RemoteAddr(), err)
		return
	}
	if zone.Silent || len(query.Question) != 1 {
		return
	}
	question := query.Question[0]
	reply := new(dns.Msg).SetReply(query)
	reply.Authoritative, reply.RecursionAvailable = true, true
	answers, known := zone.lookup(question)
	if reply.Answer = answers; !known {
		reply.Rcode = dns.RcodeNameError
	}
	fmt.Fprintf(s.log, "%s %s %s %d answers\n", time.Now().Format(time.RFC3339Nano), question.Name,
		dns.TypeToString[question.Qtype], len(reply.Answer))
	if err := w.WriteMsg(reply); err != nil {
		fmt.Fprintf(s.log, "reply to %s: %v\n", w.RemoteAddr(), err)
	}
}

// lookup returns the answers, and whether there is such a name at all.
func (z *Zone) lookup(q dns.Question) (answers []dns.RR, known bool) {
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: uint32(z.TTL / time.Second)}
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if addrs, ok := z.Addresses[name]; ok {
		for _, addr := range addrs {
			switch {
			case addr.Is4() && q.Qtype == dns.TypeA:
				answers = append(answers, &dns.A{Hdr: header, A: addr.AsSlice()})
			case addr.Is6() && q.Qtype == dns.TypeAAAA:
				answers = append(answers, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
			}
		}
		return answers, true
	}
	// "_http._tcp.smee.tink-system.svc.cluster.local"
	port, rest, _ := strings.Cut(name, ".")
	protocol, host, _ := strings.Cut(rest, ".")
	number, ok := z.Ports[host][port+"."+protocol]
	if _, exists := z.Addresses[host]; !ok || !exists {
		return nil, false
	}
	if q.Qtype == dns.TypeSRV {
		answers = append(answers, &dns.SRV{Hdr: header, Weight: 100, Port: number, Target: dns.Fqdn(host)})
	}
	return answers, true
}
