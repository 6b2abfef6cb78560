package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/history"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// historySize is what the files of the history take, in bytes: some 100,000 events, of a few thousand boots.
const historySize = 16 << 20

// keeper records events in the journal, in the order of their times, and in a history that survives the process where
// there is one. It is a daemon.Task.
type keeper struct {
	*feed.Merger
	journal *journal.Journal
	history *history.History // nil: none
	retryAt time.Time        // when a history that failed is written again; zero: it did not fail
	log     *slog.Logger
	ticked  time.Time // in the replay
}

func newKeeper(j *journal.Journal, log *slog.Logger) *keeper {
	k := &keeper{journal: j, log: log}
	k.Merger = feed.NewMerger(k.record, k.tick)
	return k
}

// remember records the events that the history in a file holds, and adds later events to that history. Without a file,
// or with one that cannot be read, there is no history.
func (k *keeper) remember(file string) {
	if file == "" {
		return
	}
	h, damage, err := history.Open(file, historySize, k.replay)
	if damage != nil {
		k.log.Warn("left out a part of the history of boots", "error", damage.Error())
	}
	if err != nil {
		k.log.Error("failed to keep the history of boots", "error", err.Error())
		return
	}
	k.history = h
}

// replay records an event of the history, and tells the journal the time as it went by. A clock that was wrong when the
// event was kept does not take the journal into the future.
func (k *keeper) replay(e *boot.Event) {
	e.At = min(e.At, time.Now().UnixNano())
	k.journal.Record(e)
	if at := time.Unix(0, e.At); at.Sub(k.ticked) >= time.Second {
		k.ticked = at
		k.journal.Tick(at)
	}
}

func (k *keeper) record(e *boot.Event) {
	k.journal.Record(e)
	if k.history != nil && k.retryAt.IsZero() {
		k.noteError(k.history.Add(e))
	}
}

func (k *keeper) tick(now time.Time) {
	k.journal.Tick(now)
	switch {
	case k.history == nil:
	case k.retryAt.IsZero():
		k.noteError(k.history.Flush())
	case now.After(k.retryAt):
		k.retryAt = time.Time{}
		k.noteError(k.history.GoOn())
	}
}

// retryHistory is how long a history that cannot be written is left alone: a disk that is full may have room again.
const retryHistory = time.Minute

// noteError takes the history's error, nil for none: a history that cannot be written is left alone for a while.
func (k *keeper) noteError(err error) {
	if err != nil {
		k.log.Error("failed to keep the history of boots", "error", err.Error(), "again_in", retryHistory.String())
		_ = k.history.Close()
		k.retryAt = time.Now().Add(retryHistory)
	}
}

// Run implements daemon.Task.
func (k *keeper) Run(ctx context.Context) error {
	err := k.Merger.Run(ctx)
	if k.history != nil && k.retryAt.IsZero() {
		k.noteError(k.history.Close())
	}
	return err
}
