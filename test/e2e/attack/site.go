package attack

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pin/tftp/v3"
)

// Ports of the proxy; those of its backends are farPort more.
const (
	portHTTP  = 7171
	portFiles = 8080
	portTLS   = 8443
	portGRPC  = 42114
	portTCP   = 42113
	portTFTP  = 69
	portAdmin = 9069
	farPort   = 10_000
)

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// image is what a rack loads, in bytes.
const image = 4 << 20

// large is what slow readers ask for, in bytes: more than any socket's buffer.
const large = 32 << 20

const routes = `routes:
- {name: http, protocol: http, listen: 7171, backends: "127.0.0.1:17171"}
- {name: files, protocol: files, listen: 8080, files: {directory: DIR/files}}
- name: tls
  protocol: http
  listen: 8443
  backends: "127.0.0.1:17171"
  tls: {certificates: {certificate: DIR/tls.crt, key: DIR/tls.key}}
- {name: grpc, protocol: grpc, listen: 42114, backends: "127.0.0.1:52114"}
- {name: tcp, protocol: tcp, listen: 42113, backends: "127.0.0.1:52113"}
- {name: tftp, protocol: tftp, listen: 69, backends: "127.0.0.1:10069"}
`

// write makes the files that the proxy reads.
func write(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"x"},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return errors.Join(
		os.MkdirAll(filepath.Join(dir, "files"), 0o755),
		os.WriteFile(filepath.Join(dir, "files", "large"), make([]byte, large), 0o600),
		os.WriteFile(filepath.Join(dir, "files", "kernel"), content, 0o600),
		os.WriteFile(filepath.Join(dir, "files", "image"), make([]byte, image), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.crt"), encode("CERTIFICATE", certificate), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), encode("PRIVATE KEY", text), 0o600),
		os.WriteFile(filepath.Join(dir, "routes.yaml"),
			bytes.ReplaceAll([]byte(routes), []byte("DIR"), []byte(dir)), 0o600),
	)
}

// content is what a machine loads.
var content = bytes.Repeat([]byte("kernel\n"), 100_000)

// serve starts the backends, and returns how they end.
func serve() (stop func(), err error) {
	var closers []io.Closer
	stop = func() {
		for _, c := range closers {
			_ = c.Close()
		}
	}
	web := http.NewServeMux()
	web.HandleFunc("/meta", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metadata") })
	web.HandleFunc("/sink", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	web.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(large))
		for piece := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	calls := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	})
	for port, handler := range map[int]http.Handler{portHTTP: web, portGRPC: calls} {
		listener, err := net.Listen("tcp", address(port+farPort))
		if err != nil {
			stop()
			return nil, fmt.Errorf("failed to start backend: %w", err)
		}
		server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
		closers = append(closers, server)
		go func() { _ = server.Serve(listener) }()
	}
	echo, err := net.Listen("tcp", address(portTCP+farPort))
	if err != nil {
		stop()
		return nil, fmt.Errorf("failed to start backend: %w", err)
	}
	closers = append(closers, echo)
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	conn, err := net.ListenPacket("udp", address(portTFTP+farPort))
	if err != nil {
		stop()
		return nil, fmt.Errorf("failed to start backend: %w", err)
	}
	files := tftp.NewServer(func(_ string, to io.ReaderFrom) error {
		_, err := to.ReadFrom(bytes.NewReader(content[:100_000]))
		return err
	}, nil)
	closers = append(closers, conn)
	go func() { _ = files.Serve(conn.(*net.UDPConn)) }()
	return stop, nil
}

// answer says everything again, or much for "large".
func answer(c net.Conn) {
	defer c.Close()
	first := make([]byte, 6)
	n, err := io.ReadAtLeast(c, first, 1)
	if err == nil && string(first[:n]) == "large\n" {
		_, _ = io.CopyN(c, zeros{}, large)
		return
	}
	if _, err := c.Write(first[:n]); err == nil {
		_, _ = io.Copy(c, c)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
