package soak

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is a name server whose answers live for a second.
type zone struct {
	conn net.PacketConn
	done chan struct{}

	mu     sync.Mutex
	names  map[string][]netip.Addr
	silent bool
}

func serveZone() (*zone, error) {
	conn, err := net.ListenPacket("udp", nameServer+":53")
	if err != nil {
		return nil, fmt.Errorf("failed to start name server: %w", err)
	}
	z := &zone{conn: conn, done: make(chan struct{}), names: map[string][]netip.Addr{}}
	go z.serve()
	return z, nil
}

func (z *zone) close() {
	_ = z.conn.Close()
	<-z.done
}

// set says what the next answers are.
func (z *zone) set(name string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[name] = nil
	for _, addr := range addrs {
		z.names[name] = append(z.names[name], netip.MustParseAddr(addr))
	}
}

// silence has the server answer nothing, or answer again.
func (z *zone) silence(on bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.silent = on
}

func (z *zone) serve() {
	defer close(z.done)
	buffer := make([]byte, 4096)
	for {
		n, from, err := z.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if reply := z.answer(buffer[:n]); reply != nil {
			_, _ = z.conn.WriteTo(reply, from)
		}
	}
}

func (z *zone) answer(query []byte) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	z.mu.Lock()
	addrs, known := slices.Clone(z.names[question.Name.String()]), z.names[question.Name.String()] != nil
	silent := z.silent
	z.mu.Unlock()
	if silent {
		return nil
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, addr := range addrs {
		if question.Type == dnsmessage.TypeA {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: addr.As4()},
			})
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		return nil
	}
	return packed
}
