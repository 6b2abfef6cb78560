// Package history keeps the last events of boots in two files of bounded size, so that a restart forgets nothing: the
// one that is written, and the one before it, which goes when that is full.
package history

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/tinkerbell/stack/pkg/boot"
)

const bufferSize = 64 << 10

// History is the file that is written. One goroutine uses it.
type History struct {
	path    string
	most    int64 // bytes of each file
	file    *os.File
	buffer  *bufio.Writer
	size    int64 // of the file, with what is in the buffer
	flushed int64 // of it
	encoded []byte
}

func older(path string) string { return path + ".older" }

// Open hands the events that the files hold to record, the oldest first, and returns the history that goes on from
// there. Both files together take so many bytes. An event is valid during the call. Damage names what is left out: of
// each file all that is behind an event which cannot be read, such as one that a crash tore.
func Open(path string, most int64, record func(*boot.Event)) (h *History, damage, err error) {
	h = &History{path: path, most: most / 2}
	h.flushed, damage, err = readAll(path, record)
	if err != nil {
		return nil, nil, err
	}
	return h, damage, h.GoOn()
}

// readAll reads both files. Sound is how many bytes of the newer one are events.
func readAll(path string, record func(*boot.Event)) (sound int64, damage, err error) {
	for _, name := range []string{older(path), path} {
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, nil, fmt.Errorf("failed to read the history of boots: %w", err)
		}
		rest := replay(text, record)
		if len(rest) > 0 {
			damage = errors.Join(damage, fmt.Errorf("%d bytes of %s are damaged, or of another release", len(rest), name))
		}
		sound = int64(len(text) - len(rest))
	}
	return sound, damage, nil
}

// replay records events, up to one that cannot be read, and returns what is left.
func replay(text []byte, record func(*boot.Event)) []byte {
	var e boot.Event
	for len(text) > 0 {
		rest, err := e.Decode(text)
		if err != nil {
			break
		}
		record(&e)
		text = rest
	}
	return text
}

// GoOn writes behind what was written whole, once more where it could not be written.
func (h *History) GoOn() error {
	file, err := os.OpenFile(h.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = file.Truncate(h.flushed)
	}
	if err == nil {
		_, err = file.Seek(h.flushed, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("failed to go on with the history of boots: %w", err)
	}
	h.file, h.buffer, h.size = file, bufio.NewWriterSize(file, bufferSize), h.flushed
	return nil
}

// Add adds an event.
func (h *History) Add(e *boot.Event) error {
	h.encoded = e.AppendBinary(h.encoded[:0])
	if h.size+int64(len(h.encoded)) > h.most {
		if err := h.turn(); err != nil {
			return err
		}
	}
	h.size += int64(len(h.encoded))
	_, err := h.buffer.Write(h.encoded)
	return err
}

// turn begins the file anew, and keeps what it holds as the older one.
func (h *History) turn() error {
	if err := h.Close(); err != nil {
		return err
	}
	if err := os.Rename(h.path, older(h.path)); err != nil {
		return fmt.Errorf("failed to begin a file of the history of boots: %w", err)
	}
	h.flushed = 0
	return h.GoOn()
}

// Flush hands what was added to the kernel, which keeps it if this process ends.
func (h *History) Flush() error {
	err := h.buffer.Flush()
	if err == nil {
		h.flushed = h.size
	}
	return err
}

// Close flushes and closes the file.
func (h *History) Close() error { return errors.Join(h.Flush(), h.file.Close()) }
