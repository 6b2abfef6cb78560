// Package history keeps the last events of boots in files of bounded size, so that a restart forgets nothing.
//
// There are two files. One is written until it is full; then the other one, which is older, is begun anew. Events
// follow each other as they are encoded. What a crash leaves at the end of a file, or another release has written, is
// dropped.
package history

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/tinkerbell/stack/pkg/boot"
)

const (
	magic      = "stbooth1"
	headerSize = len(magic) + 8 // the file's number among all, behind it
	bufferSize = 64 << 10
)

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

// Open hands the events that the files hold to record, the oldest first, and returns the history that goes on from
// there. Both files together take so many bytes. An event is valid during the call.
func Open(path string, most int64, record func(*boot.Event)) (*History, error) {
	h := &History{path: path, most: most / 2}
	type old struct {
		number uint64
		events []byte
	}
	var found []old
	for n := range uint64(2) {
		text, err := os.ReadFile(h.name(n))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("failed to read the history of boots: %w", err)
		}
		if len(text) >= headerSize && string(text[:len(magic)]) == magic {
			found = append(found, old{binary.BigEndian.Uint64(text[len(magic):]), text[headerSize:]})
		}
	}
	slices.SortFunc(found, func(a, b old) int { return cmp.Compare(a.number, b.number) })
	whole := int64(0)
	for _, each := range found {
		var e boot.Event
		rest, all := each.events, int64(len(each.events))
		for len(rest) > 0 {
			next, err := e.Decode(rest)
			if err != nil {
				break
			}
			rest = next
			record(&e)
		}
		h.number, whole = each.number, all-int64(len(rest))
	}
	if len(found) == 0 {
		return h, h.begin()
	}
	return h, h.goOn(int64(headerSize) + whole)
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

// goOn writes behind the first bytes of the newest file.
func (h *History) goOn(size int64) error {
	file, err := os.OpenFile(h.name(h.number), os.O_WRONLY, 0)
	if err == nil {
		err = file.Truncate(size)
	}
	if err == nil {
		_, err = file.Seek(size, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("failed to go on with the history of boots: %w", err)
	}
	h.file, h.buffer, h.size = file, bufio.NewWriterSize(file, bufferSize), size
	return nil
}

// Add adds an event.
func (h *History) Add(e *boot.Event) error {
	h.encoded, _ = e.AppendBinary(h.encoded[:0])
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
