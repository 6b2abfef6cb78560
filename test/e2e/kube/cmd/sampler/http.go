//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// httpInterval is the time between two requests.
	httpInterval = 50 * time.Millisecond
	// httpTimeout is what a client waits for an answer; its kernel repeats a SYN after 1 s and 3 s meanwhile.
	httpTimeout = 10 * time.Second
)

// requests is what became of them.
type requests struct {
	mu sync.Mutex

	Requests int      `json:"requests"`
	Lost     int      `json:"lost"`
	Slowest  float64  `json:"slowest"`  // seconds
	Repeated int      `json:"repeated"` // those that took longer than the first SYN's repetition
	Errors   []string `json:"errors"`   // the first ten
}

func (r *requests) text() string {
	return fmt.Sprintf("%d requests, %d lost, %d with a SYN that was repeated, the slowest took %.1f s %q",
		r.Requests, r.Lost, r.Repeated, r.Slowest, r.Errors)
}

// sampleHTTP asks for the beginning of a file, each time by a connection of its own. It ends when all have been
// answered or given up.
func sampleHTTP(ctx context.Context, url string) *requests {
	client := &http.Client{Timeout: httpTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	r := &requests{Errors: []string{}}
	var asking sync.WaitGroup
	begun := time.Now()
	each(ctx, httpInterval, func() {
		asking.Go(func() {
			at := time.Now()
			err := ask(context.WithoutCancel(ctx), client, url)
			took := time.Since(at)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.Requests++
			r.Slowest = max(r.Slowest, took.Seconds())
			if took > time.Second {
				r.Repeated++
			}
			if err == nil {
				return
			}
			r.Lost++
			if len(r.Errors) < 10 {
				since := at.Sub(begun)
				r.Errors = append(r.Errors, fmt.Sprintf("%.1f s, after %.1f s: %v", since.Seconds(), took.Seconds(), err))
			}
		})
	})
	asking.Wait()
	return r
}

func ask(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Range", "bytes=0-1023")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("status %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
