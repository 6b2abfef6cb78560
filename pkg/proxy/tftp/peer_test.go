package tftp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/bootfile"
)

// fileServer is an ordinary TFTP server, or one that answers from its only port.
type fileServer struct {
	files      map[string][]byte
	smee       bool // finds loaders as Smee does: in any machine's directory, with any trace
	singlePort bool
	lose       func() bool // drops a datagram it would send
	onRequest  func()
	onPeer     func(netip.AddrPort) // sees who asks
	retry      time.Duration        // until it sends again; 0 is retryAfter
	sockets    atomic.Int32         // of transfers
}

const retryAfter = 100 * time.Millisecond

func (fs *fileServer) listen(t testing.TB, ns *nstest.NS, at string) {
	t.Helper()
	var conn *net.UDPConn
	ns.Do(t, func() error {
		addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
		c, err := net.ListenUDP("udp", addr)
		conn = c
		return err
	})
	open := func() (*net.UDPConn, error) {
		var c *net.UDPConn
		err := ns.Try(func() (err error) {
			c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(netip.MustParseAddrPort(at).Addr().String())})
			return err
		})
		return c, err
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { fs.serve(conn, open, stop, &running) })
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close()
		running.Wait()
	})
}

// serve runs until conn is closed. Each transfer has a goroutine, which ends by its own retries or with stop.
func (fs *fileServer) serve(
	conn *net.UDPConn, open func() (*net.UDPConn, error), stop chan struct{}, running *sync.WaitGroup,
) {
	type peer struct {
		request []byte
		in      chan []byte
	}
	peers := map[netip.AddrPort]peer{}
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		b := bytes.Clone(buf[:n])
		r, ok := parseRequest(b)
		if !ok {
			select {
			case peers[from].in <- b:
			default:
			}
			continue
		}
		if fs.onRequest != nil {
			fs.onRequest()
		}
		if fs.onPeer != nil {
			fs.onPeer(from)
		}
		if fs.singlePort && bytes.Equal(peers[from].request, b) {
			continue // a repetition
		}
		in := make(chan []byte, 64)
		out := conn
		if fs.singlePort {
			peers[from] = peer{b, in}
		} else {
			fs.sockets.Add(1)
			if out, err = open(); err != nil {
				fs.sockets.Add(-1)
				continue
			}
			running.Go(func() {
				buf := make([]byte, 65536)
				for {
					n, who, err := out.ReadFromUDPAddrPort(buf)
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err == nil && who == from {
						select {
						case in <- bytes.Clone(buf[:n]):
						default:
						}
					}
				}
			})
		}
		running.Go(func() {
			fs.transfer(r, in, stop, func(b []byte) {
				if fs.lose == nil || !fs.lose() {
					_, _ = out.WriteToUDPAddrPort(b, from)
				}
			})
			if out != conn {
				_ = out.Close()
				fs.sockets.Add(-1)
			}
		})
	}
}

func (fs *fileServer) transfer(r request, in <-chan []byte, stop <-chan struct{}, send func([]byte)) {
	data, ok := fs.files[string(r.file)]
	if !ok && fs.smee {
		name, _ := bootfile.LoaderName(string(r.file))
		data, ok = fs.files[name]
	}
	if !ok {
		send(errorPacket(1, "file not found"))
		return
	}
	size, window := defaultBlock, 1
	oack := []byte{0, opOack}
	eachOption(r.options, func(name, value []byte) {
		v, _ := strconv.Atoi(string(value))
		switch string(bytes.ToLower(name)) {
		case "blksize":
			size = v
		case "windowsize":
			window = v
		case "tsize":
			value = []byte(strconv.Itoa(len(data)))
		default:
			return
		}
		oack = append(append(append(append(oack, name...), 0), value...), 0)
	})
	broken := false                // by the client's ERROR
	acked := func(n uint16) bool { // waits for the ACK of block n
		deadline := time.After(cmp.Or(fs.retry, retryAfter))
		for {
			select {
			case b := <-in:
				switch op, _ := opcode(b); op {
				case opAck:
					if got, _ := blockNumber(b); got == n {
						return true
					}
				case opError:
					broken = true
					return false
				}
			case <-deadline:
				return false
			}
		}
	}
	reliably := func(n uint16, send func()) bool {
		for range 30 {
			select {
			case <-stop:
				return false
			default:
			}
			send()
			if acked(n) {
				return true
			}
			if broken {
				return false
			}
		}
		return false
	}
	if len(oack) > 2 && !reliably(0, func() { send(oack) }) {
		return
	}
	blocks := len(data)/size + 1
	for from := 1; from <= blocks; from += window {
		upTo := min(from+window-1, blocks)
		if !reliably(uint16(upTo), func() {
			for n := from; n <= upTo; n++ {
				b := binary.BigEndian.AppendUint16([]byte{0, opData}, uint16(n))
				send(append(b, data[(n-1)*size:min(n*size, len(data))]...))
			}
		}) {
			return
		}
	}
}

// fetch is a client: it asks for a file and returns its content. Every datagram has to come from the asked
// address and port.
type fetch struct {
	file    string
	options []string
	lose    func() bool
	local   *net.UDPConn // a given port; else a new one
	tries   int
}

func rrq(file string, options ...string) []byte {
	b := append([]byte{0, opRead}, file...)
	b = append(b, "\x00octet\x00"...)
	for _, o := range options {
		b = append(append(b, o...), 0)
	}
	return b
}

// plain is an address without its zone, whose name the test's own namespace cannot know.
func plain(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

func (c fetch) run(ns *nstest.NS, server string) ([]byte, error) {
	at := netip.MustParseAddrPort(server)
	conn := c.local
	if conn == nil {
		if err := ns.Try(func() (err error) {
			conn, err = net.ListenUDP("udp", &net.UDPAddr{})
			return err
		}); err != nil {
			return nil, err
		}
		defer conn.Close()
	}
	var content bytes.Buffer
	packet := rrq(c.file, c.options...)
	agreed := negotiated{blockSize: defaultBlock, window: 1}
	expected, inWindow := uint16(1), 0
	buf := make([]byte, 65536)
	tries := 0
	send := func() error {
		if c.lose != nil && c.lose() {
			return nil
		}
		_, err := conn.WriteToUDPAddrPort(packet, at)
		return err
	}
	if err := send(); err != nil {
		return nil, err
	}
	ack := func(n uint16) error {
		packet = binary.BigEndian.AppendUint16([]byte{0, opAck}, n)
		return send()
	}
	// again acknowledges the last block that came, also in the midst of a window.
	again := func() error {
		if content.Len() > 0 {
			return ack(expected - 1)
		}
		return send()
	}
	for {
		_ = conn.SetReadDeadline(time.Now().Add(3 * retryAfter))
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if tries++; tries > max(c.tries, 20) {
				return nil, fmt.Errorf("gave up waiting for block %d", expected)
			}
			inWindow = 0
			if err := again(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if plain(from) != plain(at) {
			return nil, fmt.Errorf("got a datagram from %s, asked %s", from, at)
		}
		b := buf[:n]
		op, _ := opcode(b)
		switch op {
		case opOack:
			if content.Len() > 0 {
				continue
			}
			agreed = parseOack(b)
			if err := ack(0); err != nil {
				return nil, err
			}
		case opError:
			return nil, fmt.Errorf("ERROR %d %q", binary.BigEndian.Uint16(b[2:]), bytes.TrimRight(b[4:], "\x00"))
		case opData:
			if got, _ := blockNumber(b); got != expected {
				if got == expected-1 && expected > 1 { // our ACK was lost
					if err := again(); err != nil {
						return nil, err
					}
				}
				continue
			}
			tries = 0
			content.Write(b[4:])
			last := len(b)-4 < agreed.blockSize
			if inWindow++; inWindow == agreed.window || last {
				inWindow = 0
				if err := ack(expected); err != nil {
					return nil, err
				}
			}
			expected++
			if last {
				return content.Bytes(), nil
			}
		}
	}
}
