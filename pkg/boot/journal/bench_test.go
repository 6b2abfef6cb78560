package journal

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// rack is 2,000 machines that boot at once.
func rack() (*Journal, []actor) {
	j := New(Options{})
	actors := make([]actor, 2000)
	for n := range actors {
		actors[n] = actor{
			fmt.Sprintf("52:54:00:5f:%02x:%02x", n>>8, n&255), netip.AddrFrom4([4]byte{10, 2, byte(n >> 8), byte(n)}).String(),
		}
		put(j, actors[n].toSystem(float64(n)/200)...)
	}
	return j, actors
}

func BenchmarkMachines2000(b *testing.B) {
	j, _ := rack()
	b.ReportAllocs()
	for b.Loop() {
		if n := len(j.Machines()); n != 2000 {
			b.Fatal(n)
		}
	}
}

func BenchmarkMachine(b *testing.B) {
	j, actors := rack()
	for i := 0; b.Loop(); i++ {
		if _, ok := j.Machine(actors[i%len(actors)].mac); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkTick2000(b *testing.B) {
	j, _ := rack()
	for b.Loop() {
		j.Tick(after(60))
	}
}

func BenchmarkRecord(b *testing.B) {
	j, actors := rack()
	var events []boot.Event
	for _, a := range actors[:100] {
		for _, s := range a.toAgent(100) {
			s.event.At = after(s.at).UnixNano()
			events = append(events, s.event)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		j.Record(&events[i%len(events)])
	}
}

func BenchmarkRecordForged(b *testing.B) {
	j := New(Options{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		j.Record(forged(uint64(i), float64(i)*1e-5))
	}
}

// TestBenchBoot measures what build/bench/boot.json says of events and of the journal, where BENCH_BOOT names that file:
// make bench-boot-journal.
func TestBenchBoot(t *testing.T) {
	path := os.Getenv("BENCH_BOOT")
	if path == "" {
		t.Skip("BENCH_BOOT names no file")
	}
	type figure struct {
		Name  string  `json:"name"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
		Limit float64 `json:"limit"`
		OK    bool    `json:"ok"`
	}
	var rows []figure
	row := func(name string, value float64, unit string, limit float64) {
		rows = append(rows, figure{name, value, unit, limit, value <= limit})
		t.Logf("%s: %.4g %s (at most %.4g)", name, value, unit, limit)
		if value > limit {
			t.Errorf("%s: %.4g %s, more than %.4g", name, value, unit, limit)
		}
	}
	nanoseconds := func(r testing.BenchmarkResult) float64 { return float64(r.T.Nanoseconds()) / float64(r.N) }
	put := testing.Benchmark(func(b *testing.B) {
		q, batch := boot.NewQueue(4096), make([]boot.Event, 256)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%2048 == 0 { // The reader's part is another goroutine's.
				b.StopTimer()
				for q.Take(batch) > 0 {
				}
				b.StartTimer()
			}
			e := boot.Borrow()
			e.Kind, e.At, e.Bytes = boot.TFTP, int64(i), 97000
			boot.SetText(e, boot.File, 128, "52:54:00:5e:00:01/undionly.kpxe")
			q.Put(e)
			e.Return()
		}
	})
	row("event", nanoseconds(put), "ns", 100)
	row("event-allocations", float64(put.AllocsPerOp()), "allocations", 0)
	row("machines-2000", nanoseconds(testing.Benchmark(BenchmarkMachines2000))/1e6, "ms", 100)
	row("record", nanoseconds(testing.Benchmark(BenchmarkRecord))/1e3, "µs", 50)
	most := uint64(0)
	for _, fill := range fills {
		taken, j := measured(t, fill.fill)
		most = max(most, taken)
		runtime.KeepAlive(j)
	}
	row("store", float64(most)/(1<<20), "MiB", 64)
	text, err := json.MarshalIndent(map[string]any{"measured": time.Now().UTC().Format(time.RFC3339), "rows": rows}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
