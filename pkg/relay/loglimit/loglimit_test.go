package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestEachMessageOnceAMinute: others are logged meanwhile, and arguments are made for lines that are written only.
func TestEachMessageOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	limiter := New(slog.New(slog.NewTextHandler(&out, nil)))
	made := 0
	args := func() []any {
		made++
		return []any{"n", made}
	}
	for at := range int64(130) {
		limiter.WarnAt(at*int64(time.Second), "first", args)
		limiter.WarnAt(at*int64(time.Second), "second", args)
	}
	if got := strings.Count(out.String(), "msg=first"); got != 3 || made != 6 {
		t.Errorf("got %d lines of one message, and arguments for %d:\n%s", got, made, out.String())
	}
}
