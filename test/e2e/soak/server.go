package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pin/tftp/v3"
	"google.golang.org/grpc"
)

// Ports of every backend.
const (
	backendTCP  = 9001
	backendHTTP = 9002
	backendGRPC = 9003
	backendUDP  = 9004
)

// server is a backend with one address that speaks everything.
type server struct {
	ip     string
	single bool // TFTP from one port, as Smee does; else from a port for each transfer
	run    *run
	sinks  atomic.Int64 // uploads that have begun

	mu    sync.Mutex
	conns map[net.Conn]struct{} // of TCP
	ends  []func()
	group sync.WaitGroup
}

func serve(ip string, r *run) (*server, error) {
	s := &server{ip: ip, run: r, single: strings.HasSuffix(ip, "2")}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("failed to start backend %s: %w", ip, err)
	}
	return s, nil
}

func (s *server) start() error {
	s.conns, s.ends = map[net.Conn]struct{}{}, nil
	for _, start := range []func() error{s.startTCP, s.startHTTP, s.startGRPC, s.startUDP, s.startSyslog, s.startTFTP} {
		if err := start(); err != nil {
			s.kill()
			return err
		}
	}
	return nil
}

// running is whether the server is up.
func (s *server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ends) > 0
}

// kill ends the server as a crash does: what is open is torn.
func (s *server) kill() {
	s.mu.Lock()
	ends := s.ends
	s.ends = nil
	for conn := range s.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
	s.group.Wait()
}

func (s *server) listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("%s:%d", s.ip, port))
}

func (s *server) listenUDP(port int) (*net.UDPConn, error) {
	conn, err := net.ListenPacket("udp", fmt.Sprintf("%s:%d", s.ip, port))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

func (s *server) atEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

// startTCP says everything again.
func (s *server) startTCP() error {
	listener, err := s.listen(backendTCP)
	if err != nil {
		return err
	}
	s.atEnd(func() { _ = listener.Close() })
	s.group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.group.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
				s.mu.Lock()
				delete(s.conns, conn)
				s.mu.Unlock()
			})
		}
	})
	return nil
}

func (s *server) startHTTP() error {
	listener, err := s.listen(backendHTTP)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /who", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // answers before it has heard all
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /half", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "2000")
		_, _ = w.Write(make([]byte, 1000))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /sink", func(_ http.ResponseWriter, r *http.Request) {
		s.sinks.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		for i := range 5 {
			fmt.Fprintln(w, "event", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	s.atEnd(func() { _ = web.Close() })
	s.group.Go(func() { _ = web.Serve(listener) })
	return nil
}

func (s *server) startGRPC() error {
	listener, err := s.listen(backendGRPC)
	if err != nil {
		return err
	}
	made := newEcho()
	s.atEnd(made.Stop)
	s.group.Go(func() { _ = made.Serve(listener) })
	return nil
}

func (s *server) startUDP() error {
	conn, err := s.listenUDP(backendUDP)
	if err != nil {
		return err
	}
	s.atEnd(func() { _ = conn.Close() })
	s.group.Go(func() {
		buffer := make([]byte, 65536)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
			}
		}
	})
	return nil
}

func (s *server) startSyslog() error {
	conn, err := s.listenUDP(portSyslog)
	if err != nil {
		return err
	}
	s.atEnd(func() { _ = conn.Close() })
	s.group.Go(func() {
		buffer := make([]byte, 65536)
		for {
			n, err := conn.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.run.tally.line(string(buffer[:n]))
			}
		}
	})
	return nil
}

func (s *server) startTFTP() error {
	conn, err := s.listenUDP(portTFTP)
	if err != nil {
		return err
	}
	made := tftp.NewServer(func(_ string, to io.ReaderFrom) error {
		_, err := to.ReadFrom(bytes.NewReader(s.run.file[:tftpSize]))
		return err
	}, nil)
	made.SetRetries(2)
	made.SetTimeout(time.Second)
	if s.single {
		made.EnableSinglePort()
	}
	s.atEnd(func() {
		_ = conn.Close()
		go made.Shutdown() // waits for transfers, which end by their own retries
	})
	s.group.Go(func() { _ = made.Serve(conn) })
	return nil
}

// newEcho is a gRPC server with one bidirectional stream that says every message again.
func newEcho() *grpc.Server {
	made := grpc.NewServer(grpc.ForceServerCodec(text{}))
	made.RegisterService(&grpc.ServiceDesc{
		ServiceName: "soak.Echo",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Talk", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				for {
					var message string
					if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
						return nil
					} else if err != nil {
						return err
					}
					if err := stream.SendMsg(&message); err != nil {
						return err
					}
				}
			},
		}},
	}, nil)
	return made
}

var talk = grpc.StreamDesc{StreamName: "Talk", ServerStreams: true, ClientStreams: true}

// text has gRPC carry strings.
type text struct{}

func (text) Name() string { return "text" }

func (text) Marshal(v any) ([]byte, error) { return []byte(*v.(*string)), nil }

func (text) Unmarshal(b []byte, v any) error {
	*v.(*string) = string(b)
	return nil
}

// say sends a message on a stream and wants it back.
func say(stream grpc.ClientStream, message string) error {
	if err := stream.SendMsg(&message); err != nil {
		return fmt.Errorf("failed to send on stream: %w", err)
	}
	var got string
	if err := stream.RecvMsg(&got); err != nil {
		return fmt.Errorf("failed to receive on stream: %w", err)
	}
	if got != message {
		return fmt.Errorf("failed to hear the same from stream: got %d bytes of %d", len(got), len(message))
	}
	return nil
}

// pause waits, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
