package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/process"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

var wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in ([0-9.]+)s`)

// measureSmall has wrk ask for a small answer as fast as it can, on 32 connections.
func measureSmall(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	used := c.CPU()
	wrk, err := process.Find("wrk")
	if err != nil {
		return nil, fmt.Errorf("failed to find wrk (Debian: wrk): %w", err)
	}
	cmd := exec.CommandContext(ctx, wrk, "-t1", "-c32", "-d"+strconv.Itoa(max(int(b.Duration.Seconds()), 1))+"s",
		"http://"+c.http+"/auto.ipxe")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("failed to run wrk: %w\n%s", err, out)
	}
	cpu := c.CPU() - used
	match := wrkRequests.FindSubmatch(out)
	if match == nil || bytes.Contains(out, []byte("Non-2xx")) {
		return nil, fmt.Errorf("wrk did not do its work:\n%s", out)
	}
	requests, _ := strconv.ParseFloat(string(match[1]), 64)
	seconds, _ := strconv.ParseFloat(string(match[2]), 64)
	s := rounds.Sample{"req_per_s": requests / seconds}
	if c.Process != nil {
		s["req_per_cpu_s"] = requests / cpu
	}
	return s, nil
}

const (
	rate        = 5000
	rateClients = 50
)

// measureRate asks at a fixed rate whatever the answers do, and times each request from the moment it was due, so
// that a stall shows in every request behind it.
func measureRate(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	pids := append(append(c.PIDs(), b.backends.nginx.PIDs()...), os.Getpid())
	if err := process.Realtime(pids...); err != nil {
		return nil, err
	}
	defer func() { _ = process.Ordinary(append(b.backends.nginx.PIDs(), os.Getpid())...) }()
	used, begun := c.CPU(), time.Now()
	var mu sync.Mutex
	var all []time.Duration
	var failed atomic.Int64
	var clients sync.WaitGroup
	interval := time.Second * rateClients / rate
	for i := range rateClients {
		clients.Go(func() {
			took, err := paced(ctx, c.http, begun.Add(interval*time.Duration(i)/rateClients), interval, begun.Add(b.Duration))
			if err != nil {
				failed.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	clients.Wait()
	if failed.Load() > 0 {
		return nil, fmt.Errorf("%d of %d clients failed", failed.Load(), rateClients)
	}
	cpu := c.CPU() - used
	slices.Sort(all)
	at := func(share float64) float64 { return float64(all[int(share*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	s := rounds.Sample{"p50_us": at(0.5), "p99_us": at(0.99)}
	if c.Process != nil {
		s["cpu_pct"] = cpu / time.Since(begun).Seconds() * 100
	}
	return s, ctx.Err()
}

// paced is one client's requests, on one connection.
func paced(
	ctx context.Context, addr string, first time.Time, every time.Duration, end time.Time,
) ([]time.Duration, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	request := []byte("GET /auto.ipxe HTTP/1.1\r\nHost: bench\r\n\r\n")
	var took []time.Duration
	for due := first; due.Before(end) && ctx.Err() == nil; due = due.Add(every) {
		time.Sleep(time.Until(due))
		sent := time.Now()
		if late := sent.Sub(due); late < time.Millisecond {
			due = sent // the timer's own lateness is not the proxy's
		}
		if _, err := conn.Write(request); err != nil {
			return took, err
		}
		if err := readResponse(reader); err != nil {
			return took, err
		}
		took = append(took, time.Since(due))
	}
	return took, nil
}

// readResponse reads a response with a length, and nothing more.
func readResponse(r *bufio.Reader) error {
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	_, err := io.CopyN(io.Discard, r, int64(length))
	return err
}
