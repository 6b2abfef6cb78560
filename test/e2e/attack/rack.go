package attack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Rack is machines that load a file at one moment, each from an address of its own.
type Rack struct {
	Machines int
	Shared   int // addresses that the machines share, if not 0
	Address  string
	Path     string // %d in it is the machine's number
	Size     int64  // of the file, in bytes
	Rate     int64  // of each machine, in bytes per second; 0 is as fast as it goes
}

// Loads are what became of a rack.
type Loads struct {
	Whole  int
	Failed map[string]int // by error
	Took   time.Duration
}

func (l Loads) String() string {
	return fmt.Sprintf("%d whole in %.1f s, failed %v", l.Whole, l.Took.Seconds(), l.Failed)
}

// Load has each machine load the file once, and ask once only, as firmware does.
func (r Rack) Load(ctx context.Context) Loads {
	var group sync.WaitGroup
	var mu sync.Mutex
	var whole atomic.Int64
	var connected sync.WaitGroup
	connected.Add(r.Machines)
	begun, failed := time.Now(), map[string]int{}
	for i := range r.Machines {
		group.Go(func() {
			if err := r.load(ctx, i, func() {
				connected.Done()
				connected.Wait()
			}); err != nil {
				mu.Lock()
				failed[reason(err)]++
				mu.Unlock()
				return
			}
			whole.Add(1)
		})
	}
	group.Wait()
	return Loads{Whole: int(whole.Load()), Failed: failed, Took: time.Since(begun)}
}

// reason is an error without what differs from one machine to the next.
func reason(err error) string {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err.Error()
		}
		err = inner.Unwrap()
	}
}

// load loads the file as one machine, which asks when all machines are connected.
func (r Rack) load(ctx context.Context, machine int, connected func()) error {
	connected = sync.OnceFunc(connected)
	defer connected()
	from, path := machine, strings.ReplaceAll(r.Path, "%d", strconv.Itoa(machine))
	if r.Shared > 0 {
		from %= r.Shared
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 3, byte(from>>8), byte(from))}, Timeout: quiet}
	c, err := dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	connected()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path); err != nil {
		return err
	}
	begun, in := time.Now(), bufio.NewReaderSize(deadlined{c}, 16<<10)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	got, piece := int64(0), make([]byte, 16<<10)
	for {
		n, err := response.Body.Read(piece)
		got += int64(n)
		switch {
		case err == io.EOF && got == r.Size:
			return nil
		case err == io.EOF:
			return errors.New("a short file")
		case err != nil:
			return err
		case r.Rate > 0:
			time.Sleep(time.Until(begun.Add(time.Duration(got * int64(time.Second) / r.Rate))))
		}
	}
}

// deadlined is a connection on which each read has to get something before long.
type deadlined struct{ net.Conn }

func (d deadlined) Read(b []byte) (int, error) {
	_ = d.SetReadDeadline(time.Now().Add(quiet))
	return d.Conn.Read(b)
}
