// Package bootspage measures how fast stack-boots shows machines that boot through stack-proxy: how long its page
// takes, and how long a step takes to reach a browser that looks.
package bootspage

import (
	"bufio"
	"context"
	"errors"
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

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
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
	// probe is the machine whose steps are waited for.
	probe, probeSource = "02:00:00:00:ff:ff", "127.2.255.254"
	// browsers look at the whole list meanwhile.
	browsers = 3
)

// paths are what a machine asks for, one after the other; the first names it.
var paths = []string{"/%s/auto.ipxe", "/vmlinuz-x86_64", "/initramfs-x86_64", "/images/ubuntu.raw.gz"}

// Run measures and returns the rows.
func Run(ctx context.Context, o Options) ([]report.Row, error) {
	return rounds.Run(ctx, []rounds.Case{{
		Name: fmt.Sprintf("boots-page-%d", o.Machines),
		Units: map[string]string{
			"page_median": "ms", "page_worst": "ms", "update_median": "ms", "update_worst": "ms", "memory": "MiB",
			"shown": "machines",
		},
		Candidates: []string{"stack-boots"},
		Measure:    func(ctx context.Context, _ string) (rounds.Sample, error) { return measure(ctx, o) },
	}}, rounds.Options{Runs: o.Runs, Log: o.Log})
}

func measure(ctx context.Context, o Options) (rounds.Sample, error) {
	shows, closed, err := open(ctx, o, []string{o.Boots})
	if err != nil {
		return nil, err
	}
	defer closed()

	ctx, cancel := context.WithTimeout(ctx, o.Duration+time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	looking, look := context.WithCancel(ctx)
	defer look()
	for range browsers {
		lines, closed, err := stream(looking, "/boots/live")
		if err != nil {
			return nil, err
		}
		defer closed()
		wg.Add(1)
		go func() {
			defer wg.Done()
			for lines.Scan() {
			}
		}()
	}
	booting, booted := context.WithTimeout(ctx, o.Duration)
	defer booted()
	failed := make(chan error, 2)
	go func() { failed <- boot(ctx, o) }()
	updates := make(chan []float64, 1)
	go func() {
		found, err := probes(booting)
		updates <- found
		failed <- err
	}()
	var pages []float64
	for booting.Err() == nil {
		begin := time.Now()
		if _, err := get(ctx, http.DefaultClient, "http://"+admin+"/boots"); err != nil {
			return nil, err
		}
		pages = append(pages, milliseconds(begin))
		time.Sleep(100 * time.Millisecond)
	}
	found := <-updates
	if err := errors.Join(<-failed, <-failed); err != nil {
		return nil, err
	}
	memory := shows.Memory() / 1024
	text, err := get(ctx, http.DefaultClient, "http://"+admin+"/api/v1/boots")
	look()
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("failed to measure updates: %d found, %w", len(found), err)
	}
	slices.Sort(pages)
	slices.Sort(found)
	return rounds.Sample{
		"page_median": rounds.Median(pages), "page_worst": pages[len(pages)-1],
		"update_median": rounds.Median(found), "update_worst": found[len(found)-1],
		"memory": memory, "shown": float64(strings.Count(text, `"boots":[`)),
	}, nil
}

// open starts stack-boots by a command, and a stack-proxy that tells it of machines.
func open(ctx context.Context, o Options, boots []string) (shows *process.Process, closed func(), err error) {
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
		return nil, nil, err
	}
	routes := filepath.Join(dir, "routes.yaml")
	text := fmt.Sprintf("routes:\n- {name: smee, protocol: http, listen: %q, backends: %q}\n",
		front, strings.TrimPrefix(backend.URL, "http://"))
	if err := os.WriteFile(routes, []byte(text), 0o644); err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "events.sock")
	start := func(command []string, admin string, env ...string) (*process.Process, error) {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
		p, err := process.Start(ctx, cmd, process.Options{Ready: process.Listens(admin)})
		if err == nil {
			ends = append(ends, p.Kill)
		}
		return p, err
	}
	if shows, err = start(boots, admin, append([]string{
		"STACK_BOOTS_ADMIN_ADDRESS=" + admin, "STACK_BOOTS_LISTEN_ADDRESS=" + socket, "STACK_BOOTS_LOG_LEVEL=warn",
	}, o.Env...)...); err != nil {
		return nil, nil, err
	}
	_, err = start([]string{o.Proxy}, proxyAdmin,
		"STACK_PROXY_ROUTES_FILE="+routes, "STACK_PROXY_ADMIN_ADDRESS="+proxyAdmin,
		"STACK_PROXY_BOOTS_ADDRESS="+socket, "STACK_PROXY_LOG_LEVEL=warn")
	return shows, closed, err
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

// probes has one machine more ask again and again, and returns how long each step took to reach a browser that looks at
// this machine, in milliseconds.
func probes(ctx context.Context) ([]float64, error) {
	if err := ask(ctx, probeSource, fmt.Sprintf(paths[0], probe)); err != nil {
		return nil, err
	}
	lines, closed, err := stream(ctx, "/boots/live?mac="+probe)
	if err != nil {
		return nil, err
	}
	defer closed()
	next := func() bool {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(text, `<tr data-id=\"`+probe) ||
				strings.Contains(text, `\u003ctr data-id=\"`+probe) {
				return true
			}
		}
		return false
	}
	if !next() {
		return nil, errors.New("the machine never came")
	}
	var took []float64
	for n := 0; ctx.Err() == nil; n++ {
		begin := time.Now()
		if err := ask(ctx, probeSource, paths[1+n%(len(paths)-1)]); err != nil || !next() {
			break // the time is over
		}
		took = append(took, milliseconds(begin))
		time.Sleep(time.Duration(37+n%100) * time.Millisecond)
	}
	return took, nil
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

// stream opens a stream of events of the page's.
func stream(ctx context.Context, path string) (lines *bufio.Scanner, closed func(), err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, nil, fmt.Errorf("GET %s: %s", path, response.Status)
	}
	lines = bufio.NewScanner(response.Body)
	lines.Buffer(nil, 4<<20)
	return lines, func() { _ = response.Body.Close() }, nil
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1e3 }
