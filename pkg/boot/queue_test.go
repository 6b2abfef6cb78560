package boot

import (
	"sync"
	"testing"
	"time"
)

func TestQueueKeepsOrderAndCountsWhatFindsNoRoom(t *testing.T) {
	q := NewQueue(5) // 8 places
	batch := make([]Event, 3)
	put, want := uint32(0), uint32(0)
	for round := range 7 {
		for range 8 {
			put++
			q.Put(&Event{XID: put})
		}
		dropped := q.Dropped()
		q.Put(&Event{XID: 1 << 31})
		if got := q.Dropped(); got != dropped+1 {
			t.Fatalf("round %d: %d dropped by a full queue, want one", round, got-dropped)
		}
		for n := q.Take(batch); n > 0; n = q.Take(batch) {
			for _, e := range batch[:n] {
				if want++; e.XID != want {
					t.Fatalf("round %d: got event %d, want %d", round, e.XID, want)
				}
			}
		}
		if want != put {
			t.Fatalf("round %d: took %d events, %d were put", round, want, put)
		}
	}
}

// Every event that was not counted as dropped arrives once, whole, and in the order of its writer.
func TestQueueOfManyWriters(t *testing.T) {
	const writers, each = 8, 4000
	q := NewQueue(64)
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for i := range uint32(each) {
				e := Event{Kind: HTTP, XID: i, Port: uint16(w)}
				SetText(&e, File, 16, "file")
				e.Bytes = uint64(i)<<8 | uint64(w)
				q.Put(&e)
			}
		})
	}
	finished := make(chan struct{})
	go func() { done.Wait(); close(finished) }()
	batch := make([]Event, 16)
	var last [writers]int64
	for w := range last {
		last[w] = -1
	}
	taken := uint64(0)
	for ended := false; ; {
		n := q.Take(batch)
		for _, e := range batch[:n] {
			if e.Bytes != uint64(e.XID)<<8|uint64(e.Port) || string(e.Text(File)) != "file" {
				t.Fatalf("a torn event: %+v", e)
			}
			if int64(e.XID) <= last[e.Port] {
				t.Fatalf("writer %d: event %d after %d", e.Port, e.XID, last[e.Port])
			}
			last[e.Port] = int64(e.XID)
		}
		taken += uint64(n)
		if n > 0 {
			continue
		}
		if ended {
			break
		}
		select {
		case <-finished:
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
	if taken+q.Dropped() != writers*each {
		t.Errorf("%d taken and %d dropped of %d", taken, q.Dropped(), writers*each)
	}
	if taken < 64 {
		t.Errorf("only %d taken", taken)
	}
}

func TestPutAllocatesNothing(t *testing.T) {
	q := NewQueue(16)
	batch := make([]Event, 16)
	if n := testing.AllocsPerRun(1000, func() {
		e := Event{Kind: TFTP, At: 1, Bytes: 1 << 20}
		SetText(&e, File, 128, "undionly.kpxe")
		q.Put(&e)
		q.Take(batch)
	}); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// BenchmarkPut is what an event costs in the path of a packet: filled in and put, with a reader as in the programs.
func BenchmarkPut(b *testing.B) {
	q := NewQueue(4096)
	batch := make([]Event, 256)
	file := []byte("52:54:00:5e:00:01/undionly.kpxe")
	b.ReportAllocs()
	e := new(Event)
	for i := 0; b.Loop(); i++ {
		if i%2048 == 0 { // The reader's part is another goroutine's.
			b.StopTimer()
			for q.Take(batch) > 0 {
			}
			b.StartTimer()
		}
		e.Kind, e.At, e.Bytes, e.MAC = TFTP, int64(i), 97000, [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}
		SetText(e, File, 128, file)
		q.Put(e)
		e.Reset()
	}
	if q.Dropped() > 0 {
		b.Errorf("%d dropped", q.Dropped())
	}
}

// BenchmarkPutFull is what an event costs that finds no room.
func BenchmarkPutFull(b *testing.B) {
	q := NewQueue(16)
	e := &Event{Kind: TFTP}
	b.ReportAllocs()
	for b.Loop() {
		q.Put(e)
	}
}
