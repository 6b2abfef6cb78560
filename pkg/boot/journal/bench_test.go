package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

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

// BenchmarkEvent is what an event costs the path of a packet: it is filled in, put and emptied.
func BenchmarkEvent(b *testing.B) {
	q, batch, e := boot.NewQueue(4096), make([]boot.Event, 256), new(boot.Event)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2048 == 0 { // The reader's part is another goroutine's.
			b.StopTimer()
			for q.Take(batch) > 0 {
			}
			b.StartTimer()
		}
		e.Kind, e.At, e.Bytes = boot.TFTP, int64(i), 97000
		boot.SetText(e, boot.File, 128, "52:54:00:5e:00:01/undionly.kpxe")
		q.Put(e)
		e.Reset()
	}
}

// figure is a row of build/bench/boot.json, as test/e2e/bench/report has it.
type figure struct {
	Case      string  `json:"case"`
	Candidate string  `json:"candidate"`
	Metric    string  `json:"metric"`
	Unit      string  `json:"unit"`
	Median    float64 `json:"median"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Runs      int     `json:"runs"`
}

// TestBenchBoot measures what build/bench/boot.json says of events and of the journal, if BENCH_BOOT names that file
// (make bench-boot-journal), and holds it to what was promised.
func TestBenchBoot(t *testing.T) {
	path := os.Getenv("BENCH_BOOT")
	if path == "" {
		t.Skip("BENCH_BOOT names no file")
	}
	var rows []figure
	row := func(name, metric, unit string, limit float64, values ...float64) {
		slices.Sort(values)
		f := figure{name, "stack-proxy", metric, unit, values[len(values)/2], values[0], values[len(values)-1], len(values)}
		rows = append(rows, f)
		t.Logf("%s %s: %.4g %s, at most %.4g", name, metric, f.Median, unit, limit)
		if f.Median > limit {
			t.Errorf("%s %s: %.4g %s, more than %.4g", name, metric, f.Median, unit, limit)
		}
	}
	measure := func(name, metric, unit string, limit, nanoseconds float64, bench func(*testing.B)) {
		var values, allocations []float64
		for range 5 {
			r := testing.Benchmark(bench)
			values = append(values, float64(r.T.Nanoseconds())/float64(r.N)/nanoseconds)
			allocations = append(allocations, float64(r.AllocsPerOp()))
		}
		row(name, metric, unit, limit, values...)
		if name == "boots-event" {
			row(name, "allocations", "", 0, allocations...)
		}
	}
	measure("boots-event", "cost", "ns", 100, 1, BenchmarkEvent)
	measure("boots-journal", "record", "µs", 50, 1e3, BenchmarkRecord)
	measure("boots-journal", "machines_2000", "ms", 50, 1e6, BenchmarkMachines2000)
	for _, fill := range fills {
		taken, j := measured(t, fill.fill)
		row("boots-journal", "memory, "+fill.name, "MiB", 64, float64(taken)/(1<<20))
		runtime.KeepAlive(j)
	}
	if err := write(path, rows); err != nil {
		t.Fatal(err)
	}
}

// write puts rows into a file in place of those of the same cases.
func write(path string, rows []figure) error {
	var all []figure
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &all); err != nil {
			return err
		}
	}
	all = slices.DeleteFunc(all, func(old figure) bool {
		return slices.ContainsFunc(rows, func(f figure) bool { return f.Case == old.Case })
	})
	if text, err = json.MarshalIndent(append(all, rows...), "", "  "); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
