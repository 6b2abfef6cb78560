package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/internal/redirect"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

const (
	// instanceHeader carries what recognizes a process that asks itself.
	instanceHeader = "Stack-Instance"
	// aliveEvery is how often a stream says that it is alive.
	aliveEvery = 2 * time.Second
	// Bounds on what another replica may make this one keep.
	replicaLine     = 256 << 10
	replicaMachine  = 4 << 20
	replicaMachines = 20000
	// A stream that broke is opened again after firstRetry, then after twice as long each time, up to lastRetry.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// errSelf is the answer of this very process.
var errSelf = errors.New("this replica")

// client asks other replicas: directly, whatever the environment says of proxies.
var client = &http.Client{
	Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: lastRetry}).DialContext,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     linger,
	},
	CheckRedirect: redirect.None,
}

// replica is another replica that is followed. Its fields below the address are guarded by the fleet's lock.
type replica struct {
	fleet   *fleet
	address netip.AddrPort

	settled  bool // it has answered or failed once
	ready    bool // its machines are all there
	self     bool // it is this process
	pod      string
	fault    error
	machines map[string]journal.MachineView
}

// follow keeps the replica's machines until ctx is done.
func (r *replica) follow(ctx context.Context) {
	pause := backoff.Backoff{First: firstRetry, Most: lastRetry}
	for {
		err := r.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errSelf) {
			r.fleet.change(func() { r.settled, r.self = true, true })
			<-ctx.Done()
			return
		}
		r.fleet.change(func() {
			if r.ready {
				pause.Reset()
			}
			r.settled, r.ready, r.fault, r.machines = true, false, err, nil
		})
		pause.Wait(ctx)
	}
}

// stream reads one stream of events until it ends.
func (r *replica) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	patience := aliveEvery + r.fleet.options.ReplicaTimeout
	silence := time.AfterFunc(r.fleet.options.ReplicaTimeout, cancel)
	defer silence.Stop()
	response, err := r.get(ctx, "api/v1/events?own=true")
	if err != nil {
		return r.why(ctx, err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 4<<10), replicaLine)
	machines := make(map[string]journal.MachineView)
	for lines.Scan() {
		silence.Reset(patience)
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("failed to read its events: %w", err)
		}
		if err := r.take(e, machines); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return r.why(ctx, err)
	}
	return errors.New("it closed the connection")
}

// take takes one event. Machines are gathered in the map until all are there.
func (r *replica) take(e Event, machines map[string]journal.MachineView) error {
	switch e.Type {
	case EventHello:
		r.fleet.change(func() { r.pod = Clean(e.Pod, nameLength) })
	case EventMachine:
		if e.Machine == nil || e.Machine.ID == "" {
			return errors.New("failed to read its events: a machine without an ID")
		}
		m := brief(*e.Machine)
		set := func() { machines[m.ID] = m }
		if _, known := machines[m.ID]; !known && len(machines) >= replicaMachines {
			return errors.New("it has too many machines")
		}
		if r.machines == nil { // nobody else sees the map yet, and r.machines is written by this goroutine alone
			set()
		} else {
			r.fleet.change(set)
		}
	case EventGone:
		r.fleet.change(func() { delete(machines, e.ID) })
	case EventReady:
		r.fleet.change(func() { r.settled, r.ready, r.fault, r.machines = true, true, nil, machines })
	}
	return nil
}

// machine asks for all that the replica knows of a machine.
func (h holder) machine(ctx context.Context) (journal.MachineView, error) {
	ctx, cancel := context.WithTimeout(ctx, h.fleet.options.ReplicaTimeout)
	defer cancel()
	var m journal.MachineView
	response, err := h.get(ctx, "api/v1/boots/"+url.PathEscape(h.id)+"?own=true")
	if err != nil {
		return m, h.why(ctx, err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(io.LimitReader(response.Body, replicaMachine)).Decode(&m); err != nil {
		return m, fmt.Errorf("failed to read its answer: %w", h.why(ctx, err))
	}
	return cleaned(m), nil
}

func (r *replica) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address.String()+"/"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", mediaLines+", application/json")
	request.Header.Set(instanceHeader, r.fleet.instance)
	response, err := client.Do(request)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNoContent:
		_ = response.Body.Close()
		return nil, errSelf
	case response.StatusCode != http.StatusOK:
		_ = response.Body.Close()
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	return response, nil
}

// why tells silence from other faults, and leaves the address out, which is told beside it.
func (r *replica) why(ctx context.Context, err error) error {
	var ofURL *url.Error
	switch {
	case errors.Is(err, errSelf):
		return errSelf
	case ctx.Err() != nil:
		return errors.New("no answer within " + r.fleet.options.ReplicaTimeout.String())
	case errors.As(err, &ofURL):
		return ofURL.Err
	}
	return err
}
