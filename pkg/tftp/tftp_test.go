package tftp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// exchange answers requests by a function, and gives what Read makes of it, with all that the server has heard.
func exchange(t *testing.T, ask Ask, answer func(got []byte) [][]byte) (a Answer, heard [][]byte) {
	t.Helper()
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			heard = append(heard, slices.Clone(buffer[:n]))
			for _, b := range answer(buffer[:n]) {
				_, _ = server.WriteTo(b, from)
			}
		}
	}()
	client, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a = Read(ctx, client, netip.MustParseAddrPort(server.LocalAddr().String()), ask, 50*time.Millisecond)
	time.Sleep(20 * time.Millisecond) // the last datagram
	server.Close()
	<-done
	return a, heard
}

func block(number byte, size int) []byte {
	return append([]byte{0, opData, 0, number}, make([]byte, size)...)
}

func TestTransfers(t *testing.T) {
	oack := func(options string) func([]byte) [][]byte {
		return func(got []byte) [][]byte {
			if got[1] == opRead {
				return [][]byte{append([]byte{0, opOack}, options...)}
			}
			return nil
		}
	}
	for name, test := range map[string]struct {
		ask    Ask
		answer func([]byte) [][]byte
		size   int
		err    error // nil: any, where bad
		bad    bool
		last   byte // opcode that the server hears last
	}{
		"the options alone": {Ask{Size: true, Block: 1468}, oack("tsize\x0099\x00blksize\x001468\x00"), 0, nil, false, opError},
		"without options": {Ask{Size: true, Most: 100}, func(got []byte) [][]byte {
			return [][]byte{block(1, 512)}
		}, 512, nil, false, opError},
		"whole": {Ask{Most: 9999}, func(got []byte) [][]byte {
			if got[1] == opAck {
				return [][]byte{block(got[3]+1, 5)}
			}
			return [][]byte{block(1, 512)}
		}, 517, nil, false, opAck},
		"a window, of which one block is lost": {Ask{Block: 100, Window: 4, Most: 9999}, func() func([]byte) [][]byte {
			lost := false
			return func(got []byte) [][]byte {
				switch {
				case got[1] == opRead:
					return [][]byte{[]byte("\x00\x06blksize\x00100\x00windowsize\x004\x00")}
				case got[1] == opAck && got[3] == 0 && !lost:
					lost = true
					return [][]byte{block(1, 100), block(3, 100), block(4, 100)}
				case got[1] == opAck:
					return [][]byte{block(got[3]+1, 100), block(got[3]+2, 3)}
				}
				return nil
			}
		}(), 203, nil, false, opAck},
		"an error":                   {Ask{}, func([]byte) [][]byte { return [][]byte{[]byte("\x00\x05\x00\x01gone\x00")} }, 0, errServer, true, opRead},
		"silence":                    {Ask{}, func([]byte) [][]byte { return nil }, 0, ErrSilent, true, opRead},
		"silence behind the options": {Ask{Block: 1468, Most: 1}, oack("blksize\x001468\x00"), 0, ErrStalled, true, opError},
		"options again and again": {Ask{Block: 1468, Most: 1}, func(got []byte) [][]byte {
			if got[1] == opError {
				return nil
			}
			return [][]byte{[]byte("\x00\x06blksize\x001468\x00")}
		}, 0, ErrStalled, true, opError},
		"a block size of nothing":        {Ask{Block: 1468, Most: 1}, oack("blksize\x000\x00"), 0, nil, true, opError},
		"a block size of text":           {Ask{Block: 1468, Most: 1}, oack("blksize\x001468abc\x00"), 0, nil, true, opError},
		"more than was asked for":        {Ask{Block: 512, Most: 1}, oack("blksize\x001468\x00"), 0, nil, true, opError},
		"a size beyond all":              {Ask{Size: true}, oack("tsize\x009223372036854775808\x00"), 0, nil, true, opError},
		"a block longer than agreed":     {Ask{Most: 1}, func([]byte) [][]byte { return [][]byte{block(1, 513)} }, 0, nil, true, opError},
		"an opcode that is none":         {Ask{}, func([]byte) [][]byte { return [][]byte{{0, 9, 0, 0}} }, 0, nil, true, opRead},
		"a datagram shorter than any":    {Ask{}, func([]byte) [][]byte { return [][]byte{{0}} }, 0, nil, true, opRead},
		"an endless file ends at Most":   {Ask{Most: 2000}, func(got []byte) [][]byte { return [][]byte{block(got[3]*(got[1]/opAck)+1, 512)} }, 2048, nil, false, opError},
		"what was not asked for is told": {Ask{Block: 512}, oack("tsize\x001\x00"), 0, nil, false, opError},
	} {
		a, heard := exchange(t, test.ask, test.answer)
		if (a.Err != nil) != test.bad || test.err != nil && !errors.Is(a.Err, test.err) || len(a.Content) != test.size {
			t.Errorf("%s: got %d bytes, %v", name, len(a.Content), a.Err)
		}
		if last := heard[len(heard)-1][1]; last != test.last {
			t.Errorf("%s: the server hears opcode %d last, want %d", name, last, test.last)
		}
		if name == "what was not asked for is told" && !slices.Equal(a.Uninvited(test.ask), []string{"tsize"}) {
			t.Errorf("%s: %v", name, a.Uninvited(test.ask))
		}
	}
}
