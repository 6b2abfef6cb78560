package history

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/pkg/boot"
)

func event(xid uint32) *boot.Event {
	e := &boot.Event{Kind: boot.DHCPRequest, At: int64(xid), DHCP: 1, MAC: [6]byte{2, 0, 0, 0, 0, 1}, XID: xid}
	boot.SetText(e, boot.VendorClass, 64, "PXEClient:Arch:00007:UNDI:003016")
	return e
}

// open opens a history and returns the events that it held.
func open(t *testing.T, path string, most int64) (h *History, xids []uint32) {
	t.Helper()
	h, _, err := Open(path, most, func(e *boot.Event) { xids = append(xids, e.XID) })
	if err != nil {
		t.Fatal(err)
	}
	return h, xids
}

func add(t *testing.T, h *History, from, to uint32) {
	t.Helper()
	for xid := from; xid < to; xid++ {
		if err := h.Add(event(xid)); err != nil {
			t.Fatal(err)
		}
	}
}

func numbers(from, to uint32) (all []uint32) {
	for n := from; n < to; n++ {
		all = append(all, n)
	}
	return all
}

// TestRestartsForgetNothing: what was flushed is there again, in order, and goes on; at a crash only what was not is
// missing.
func TestRestartsForgetNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	h, held := open(t, path, 1<<20)
	if len(held) != 0 {
		t.Errorf("a new history holds %v", held)
	}
	add(t, h, 0, 10)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h, held = open(t, path, 1<<20)
	if !slices.Equal(held, numbers(0, 10)) {
		t.Errorf("holds %v", held)
	}
	add(t, h, 10, 20)
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	add(t, h, 20, 21) // and the process dies
	_ = h.file.Close()
	if _, held = open(t, path, 1<<20); !slices.Equal(held, numbers(0, 20)) {
		t.Errorf("after a crash it holds %v", held)
	}
}

// TestHistoryIsBounded: the newest events stay, at least half of what there is room for.
func TestHistoryIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	const most, all = 8 << 10, 5000
	for _, restart := range []uint32{all, 700, 1} { // events between restarts
		h, _ := open(t, path, most)
		for from := uint32(0); from < all; from += restart {
			add(t, h, from, min(from+restart, all))
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			if restart == 1 && from > 300 {
				break
			}
			h, _ = open(t, path, most)
		}
		size := int64(0)
		for _, name := range []string{path, older(path)} {
			if info, err := os.Stat(name); err == nil {
				size += info.Size()
			}
		}
		_, held := open(t, path, most)
		last := held[len(held)-1]
		if size > most || len(held) < most/2/100-1 || !slices.Equal(held, numbers(last+1-uint32(len(held)), last+1)) {
			t.Errorf("restart after %d: %d bytes, %d events, the last %d", restart, size, len(held), last)
		}
		_, _ = os.Remove(path), os.Remove(older(path))
	}
}

// TestDamage: what cannot be read is left out with what is behind it, and told of, and all goes on from there.
func TestDamage(t *testing.T) {
	size := len(event(0).AppendBinary(nil))
	for name, damage := range map[string]struct {
		change func([]byte) []byte
		want   []uint32
		says   string
	}{
		"none":            {func(b []byte) []byte { return b }, numbers(0, 3), ""},
		"cut":             {func(b []byte) []byte { return b[:len(b)-1] }, numbers(0, 2), "bytes of"},
		"noughts behind":  {func(b []byte) []byte { return append(b, make([]byte, 100)...) }, numbers(0, 3), "100 bytes of"},
		"an event":        {func(b []byte) []byte { b[size]++; return b }, numbers(0, 1), "bytes of"},
		"another release": {func(b []byte) []byte { b[0]++; return b }, nil, "another release"},
		"empty":           {func([]byte) []byte { return nil }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events")
			h, _ := open(t, path, 1<<20)
			add(t, h, 0, 3)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage.change(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var held []uint32
			h, told, err := Open(path, 1<<20, func(e *boot.Event) { held = append(held, e.XID) })
			if err != nil || !slices.Equal(held, damage.want) {
				t.Fatalf("holds %v, %v", held, err)
			}
			if damage.says == "" && told != nil || damage.says != "" && (told == nil || !strings.Contains(told.Error(), damage.says)) {
				t.Errorf("tells %v", told)
			}
			add(t, h, 7, 8)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			if _, held = open(t, path, 1<<20); !slices.Equal(held, append(damage.want, 7)) {
				t.Errorf("then it holds %v", held)
			}
		})
	}
}

// TestGoesOnAfterAFullDisk: what was kept before stays, and what comes when there is room again follows it.
func TestGoesOnAfterAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	h, _ := open(t, path, 1<<20)
	add(t, h, 0, 3)
	if err := h.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // tries
		_ = h.file.Close()
		add(t, h, 3, 5)
		if h.Flush() == nil {
			t.Fatal("the file was written")
		}
		if err := h.GoOn(); err != nil {
			t.Fatal(err)
		}
	}
	add(t, h, 5, 8)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, held := open(t, path, 1<<20); !slices.Equal(held, append(numbers(0, 3), numbers(5, 8)...)) {
		t.Errorf("holds %v", held)
	}
}

func TestNoRoomForFiles(t *testing.T) {
	if _, _, err := Open("/nowhere/events", 1<<20, nil); err == nil || !strings.Contains(err.Error(), "history of boots") {
		t.Errorf("got %v", err)
	}
}
