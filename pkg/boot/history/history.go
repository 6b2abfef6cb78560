// Package history keeps the last events of boots in files of bounded size, so that a restart forgets nothing.
//
// There are two files. One is written until it is full; then the other one, which is older, is begun anew. Each event
// has its length and a checksum before it, so that reading goes on behind damage. What another release has written is
// kept aside.
package history

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/tinkerbell/stack/pkg/boot"
)

const (
	magic      = "stbooth2"
	headerSize = len(magic) + 8 // the file's number among all, behind it
	frameSize  = 2 + 4          // length and checksum, before each event
	bufferSize = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// History is the two files. One goroutine uses it.
type History struct {
	path    string
	most    int64 // bytes of each file
	number  uint64
	file    *os.File
	buffer  *bufio.Writer
	size    int64
	encoded []byte
}

// names are those of the two files.
func (h *History) name(number uint64) string { return fmt.Sprintf("%s.%d", h.path, number%2) }

// kept is what a file holds.
type kept struct {
	number uint64
	events []byte
}

// Open hands the events that the files hold to record, the oldest first, and returns the history that goes on from
// there. Both files together take so many bytes. An event is valid during the call. Damage names what the files hold
// that is not read.
func Open(path string, most int64, record func(*boot.Event)) (h *History, damage, err error) {
	h = &History{path: path, most: most / 2}
	files, faults, err := h.readAll(record)
	if err != nil {
		return nil, nil, err
	}
	for n := range uint64(2) {
		if file := h.name(n); errors.Is(faults[n], errForeign) {
			faults[n] = errors.Join(fmt.Errorf("%w: it is kept as %s.old", faults[n], file), os.Rename(file, file+".old"))
		}
	}
	if files == 0 {
		return h, errors.Join(faults...), h.begin()
	}
	return h, errors.Join(faults...), h.GoOn()
}

// Read hands the events that the files hold to record, as [Open] does, while another process may write them.
func Read(path string, most int64, record func(*boot.Event)) error {
	_, _, err := (&History{path: path, most: most / 2}).readAll(record)
	return err
}

// readAll reads both files, and returns how many there are and what is wrong with each.
func (h *History) readAll(record func(*boot.Event)) (n int, faults []error, err error) {
	faults = make([]error, 2)
	var files []kept
	for i := range faults {
		file, err := h.read(h.name(uint64(i)))
		switch {
		case err == nil:
			files = append(files, file)
		case errors.Is(err, errForeign):
			faults[i] = err
		case !errors.Is(err, fs.ErrNotExist):
			return 0, nil, fmt.Errorf("failed to read the history of boots: %w", err)
		}
	}
	slices.SortFunc(files, func(a, b kept) int { return cmp.Compare(a.number, b.number) })
	for _, each := range files {
		if lost := replay(each.events, record); lost > 0 {
			faults[each.number%2] = fmt.Errorf("%d bytes of %s are damaged", lost, h.name(each.number))
		}
		h.number = each.number
	}
	return len(files), faults, nil
}

// errForeign is what a file is that this release has not written.
var errForeign = errors.New("no history of this release")

// read reads a file of the history. None is larger than h.most.
func (h *History) read(name string) (kept, error) {
	file, err := os.Open(name)
	if err != nil {
		return kept{}, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, h.most+1))
	if err != nil {
		return kept{}, err
	}
	if len(text) < headerSize || string(text[:len(magic)]) != magic || int64(len(text)) > h.most {
		return kept{}, fmt.Errorf("%s: %w", name, errForeign)
	}
	return kept{binary.BigEndian.Uint64(text[len(magic):]), text[headerSize:]}, nil
}

// replay records the events of a file, and returns how many bytes are none.
func replay(text []byte, record func(*boot.Event)) (lost int) {
	var e boot.Event
	for len(text) > 0 {
		size := decode(text, &e)
		if size == 0 { // an event may begin at any byte behind this one
			lost, text = lost+1, text[1:]
			continue
		}
		record(&e)
		text = text[size:]
	}
	return lost
}

// decode reads the event that b begins with, and returns how many bytes it takes; 0 if there is none.
func decode(b []byte, e *boot.Event) (size int) {
	if len(b) < frameSize {
		return 0
	}
	size = frameSize + int(binary.BigEndian.Uint16(b))
	if size > frameSize+boot.MaxBinary || size > len(b) ||
		crc32.Checksum(b[frameSize:size], castagnoli) != binary.BigEndian.Uint32(b[2:]) {
		return 0
	}
	if rest, err := e.Decode(b[frameSize:size]); err != nil || len(rest) > 0 {
		return 0
	}
	return size
}

// begin begins the next file, in place of the one before the last.
func (h *History) begin() error {
	h.number++
	file, err := os.OpenFile(h.name(h.number), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("failed to begin a file of the history of boots: %w", err)
	}
	h.file, h.buffer, h.size = file, bufio.NewWriterSize(file, bufferSize), int64(headerSize)
	_, err = h.buffer.Write(binary.BigEndian.AppendUint64([]byte(magic), h.number))
	return err
}

// GoOn writes behind what the newest file holds, once more where it could not be written.
func (h *History) GoOn() error {
	file, err := os.OpenFile(h.name(h.number), os.O_WRONLY, 0)
	if err == nil {
		h.size, err = file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return fmt.Errorf("failed to go on with the history of boots: %w", err)
	}
	h.file, h.buffer = file, bufio.NewWriterSize(file, bufferSize)
	return nil
}

// Add adds an event.
func (h *History) Add(e *boot.Event) error {
	h.encoded = e.AppendBinary(append(h.encoded[:0], make([]byte, frameSize)...))
	binary.BigEndian.PutUint16(h.encoded, uint16(len(h.encoded)-frameSize))
	binary.BigEndian.PutUint32(h.encoded[2:], crc32.Checksum(h.encoded[frameSize:], castagnoli))
	if h.size+int64(len(h.encoded)) > h.most {
		if err := errors.Join(h.Close(), h.begin()); err != nil {
			return err
		}
	}
	h.size += int64(len(h.encoded))
	_, err := h.buffer.Write(h.encoded)
	return err
}

// Flush hands what was added to the kernel, which keeps it if this process ends.
func (h *History) Flush() error { return h.buffer.Flush() }

// Close flushes and closes the file.
func (h *History) Close() error { return errors.Join(h.buffer.Flush(), h.file.Close()) }
