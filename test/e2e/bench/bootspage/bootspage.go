// Package bootspage measures what memory stack-boots takes while many machines boot through stack-proxy, and many
// people look.
package bootspage

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// Options of the bench.
type Options struct {
	Proxy    string // the executables
	Boots    string
	Env      []string // of stack-boots, more
	Machines int
	Duration time.Duration // in which they all boot
	Runs     int
	Log      io.Writer
}

const (
	front             = "127.0.0.1:17171"
	admin, proxyAdmin = "127.0.0.1:19070", "127.0.0.1:19069"
)

// paths are what a machine asks for, one after the other; the first names it.
var paths = []string{"/%s/auto.ipxe", "/vmlinuz-x86_64", "/initramfs-x86_64", "/images/ubuntu.raw.gz"}

// open starts stack-boots by a command, and a stack-proxy that tells it of machines.
func open(ctx context.Context, o Options, boots []string) (closed func(), err error) {
	var ends []func()
	closed = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			closed()
		}
	}()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 4<<10))
	}))
	dir, err := os.MkdirTemp("", "bench-boots-page")
	ends = append(ends, backend.Close, func() { _ = os.RemoveAll(dir) })
	if err != nil {
		return nil, err
	}
	routes := filepath.Join(dir, "routes.yaml")
	text := fmt.Sprintf("routes:\n- {name: smee, protocol: http, listen: %q, backends: %q}\n",
		front, strings.TrimPrefix(backend.URL, "http://"))
	if err := os.WriteFile(routes, []byte(text), 0o644); err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "events.sock")
	start := func(command []string, admin string, env ...string) error {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
		p, err := process.Start(ctx, cmd, process.Options{Ready: process.Listens(admin)})
		if err == nil {
			ends = append(ends, p.Kill)
		}
		return err
	}
	if err = start(boots, admin, append([]string{
		"STACK_BOOTS_ADMIN_ADDRESS=" + admin, "STACK_BOOTS_LISTEN_ADDRESS=" + socket, "STACK_BOOTS_LOG_LEVEL=warn",
	}, o.Env...)...); err != nil {
		return nil, err
	}
	err = start([]string{o.Proxy}, proxyAdmin,
		"STACK_PROXY_ROUTES_FILE="+routes, "STACK_PROXY_ADMIN_ADDRESS="+proxyAdmin,
		"STACK_PROXY_BOOTS_ADDRESS="+socket, "STACK_PROXY_LOG_LEVEL=warn")
	return closed, err
}

// boot has all machines ask for what they ask for, evenly in time.
func boot(ctx context.Context, o Options) error {
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	room := make(chan struct{}, 64)
	all := o.Machines * len(paths)
	begin := time.Now()
	for n := range all {
		time.Sleep(time.Until(begin.Add(o.Duration / time.Duration(all) * time.Duration(n))))
		step, machine := n/o.Machines, n%o.Machines
		path := paths[step]
		if step == 0 {
			path = fmt.Sprintf(path, fmt.Sprintf("02:00:00:00:%02x:%02x", machine/256, machine%256))
		}
		room <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := ask(ctx, fmt.Sprintf("127.2.%d.%d", machine/250, machine%250+1), path); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			<-room
		}()
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// ask asks the proxy from an address of a machine's own.
func ask(ctx context.Context, source, path string) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	_, err := get(ctx, &http.Client{Transport: transport}, "http://"+front+path)
	return err
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return string(text), err
}
