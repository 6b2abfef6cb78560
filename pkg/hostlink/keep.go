package hostlink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Keeper makes listeners, and keeps them if it is run as a task.
type Keeper struct {
	// Host is the way to the node. The keeper must be its only user while it works.
	Host *Host
	// Specs are the listeners.
	Specs  []Spec
	Logger *slog.Logger
	// Wait is how long [Keeper.Make] waits for a passing cause to pass.
	Wait time.Duration
	// AwaitTraffic is how long a new listener may go without a DHCP request before a warning. Zero: any time.
	AwaitTraffic time.Duration

	mu     sync.Mutex
	faults map[string]error // by listener
}

// How often the keeper looks, and every how many looks it compares everything with the node's state.
const (
	lookEvery     = time.Second
	thoroughEvery = 15
)

// Make makes every listener and returns the first failure.
func (k *Keeper) Make(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	deadline := time.Now().Add(k.Wait)
	for _, spec := range k.Specs {
		listener, err := k.await(ctx, spec, deadline)
		if err != nil {
			return fmt.Errorf("listener %s: %w", spec.Name, err)
		}
		k.announce(listener)
		if k.AwaitTraffic > 0 {
			k.awaitTraffic(ctx, listener)
		}
	}
	return nil
}

// await makes one listener, and tries again until the deadline where the cause may pass.
func (k *Keeper) await(ctx context.Context, spec Spec, deadline time.Time) (Listener, error) {
	var last Cause
	for {
		listener, err := k.Host.Ensure(spec)
		fault, ok := errors.AsType[*Fault](err)
		left := time.Until(deadline)
		if err == nil || !ok || !fault.Cause.Passing() || left <= 0 {
			return listener, err
		}
		if fault.Cause != last {
			k.Logger.Warn("waiting to make listener", "listener", spec.Name, "cause", fault.Cause.String(),
				"error", err.Error(), "wait_seconds", left.Seconds())
			last = fault.Cause
		}
		select {
		case <-time.After(min(lookEvery, left)):
		case <-ctx.Done():
			return Listener{}, err
		}
	}
}

func (k *Keeper) warn(listener string, fault *Fault) {
	k.Logger.Warn("listener impaired", "listener", listener, "cause", fault.Cause.String(),
		"error", fault.Error())
}

func (k *Keeper) announce(l Listener) {
	k.Logger.Info("listener ready", "listener", l.Name, "kind", l.Kind.String(), "parent", l.Parent.Name,
		"chosen_by", l.Parent.Chosen, "mac", l.MAC.String(), "mtu", l.MTU, "action", l.Action.String())
	for _, warning := range l.Warnings {
		k.warn(l.Name, warning)
	}
}

func (k *Keeper) awaitTraffic(ctx context.Context, l Listener) {
	heard, err := k.Host.AwaitTraffic(ctx, l, k.AwaitTraffic)
	switch fault, ok := errors.AsType[*Fault](err); {
	case ctx.Err() != nil:
	case ok:
		k.warn(l.Name, fault)
	case heard:
		k.Logger.Info("listener hears DHCP", "listener", l.Name)
	}
}

// String implements daemon.Task.
func (k *Keeper) String() string { return "listeners" }

// Ready implements daemon.Task: every listener is as it should be.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.faults == nil {
		return errors.New("not made yet")
	}
	var reasons []error
	for _, spec := range k.Specs {
		if err := k.faults[spec.Name]; err != nil {
			reasons = append(reasons, fmt.Errorf("listener %s: %w", spec.Name, err))
		}
	}
	return errors.Join(reasons...)
}

// Run keeps the listeners until ctx is done: one that is missing, or that no longer is what it should be, is made
// anew as soon as its parent allows. It fails only at the start, for a cause that cannot pass. The listeners stay
// when it returns.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for look := 0; ; look++ {
		for _, spec := range k.Specs {
			err := k.look(spec, look%thoroughEvery == 0)
			if fault, ok := errors.AsType[*Fault](err); look == 0 && err != nil && (!ok || !fault.Cause.Passing()) {
				return fmt.Errorf("listener %s: %w", spec.Name, err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look sees to one listener. It logs what has changed since the last look, and nothing else.
func (k *Keeper) look(spec Spec, thorough bool) error {
	k.mu.Lock()
	last, known := k.faults[spec.Name]
	k.mu.Unlock()
	if known && last == nil && !thorough && k.Host.stands(spec) {
		return nil
	}
	plan, err := k.Host.Plan(spec)
	if err == nil && known && last == nil && plan.settled() {
		return nil
	}
	var listener Listener
	if err == nil {
		listener, err = k.Host.Ensure(spec)
	}
	k.mu.Lock()
	if k.faults == nil {
		k.faults = map[string]error{}
	}
	k.faults[spec.Name] = err
	k.mu.Unlock()
	switch {
	case err == nil:
		k.announce(listener)
	case last == nil || last.Error() != err.Error():
		k.Logger.Error("listener not ready", "listener", spec.Name, "cause", CauseOf(err).String(), "error", err.Error())
	}
	return err
}

// stands is a cheap look: the listener exists, is ours and is up.
func (h *Host) stands(spec Spec) bool {
	link, err := h.podLink(spec.Name)
	return err == nil && link != nil && made(link) && link.Attrs().RawFlags&unix.IFF_UP != 0
}
