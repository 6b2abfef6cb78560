package observe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// SnapLen is how much of a frame is kept that is not DHCP.
const SnapLen = 512

// File is a capture file of several interfaces. It is safe for concurrent use.
type File struct {
	mu      sync.Mutex
	file    *os.File
	w       *pcapgo.NgWriter // from the first interface on
	flushed time.Time
	err     error
}

// Create makes a capture file.
func Create(path string) (*File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("failed to create capture file: %w", err)
	}
	return &File{file: file}, nil
}

// Interface adds an interface and returns its number.
func (f *File) Interface(name, description string) (number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := pcapgo.NgInterface{Name: name, Description: description, LinkType: layers.LinkTypeEthernet}
	var err error
	if f.w == nil {
		f.w, err = pcapgo.NewNgWriterInterface(f.file, i, pcapgo.NgWriterOptions{})
	} else {
		number, err = f.w.AddInterface(i)
	}
	f.failed(err)
	return number
}

// Packet adds a frame of an interface, of which at most snap bytes are kept.
func (f *File) Packet(at time.Time, iface int, frame []byte, snap int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	kept := frame[:min(len(frame), snap)]
	f.failed(f.w.WritePacket(gopacket.CaptureInfo{
		Timestamp: at, CaptureLength: len(kept), Length: len(frame), InterfaceIndex: iface,
	}, kept))
	if at.Sub(f.flushed) > time.Second {
		f.failed(f.w.Flush())
		f.flushed = at
	}
}

// failed keeps the first error.
func (f *File) failed(err error) {
	if f.err == nil {
		f.err = err
	}
}

// Close ends the file. The error is the first of all writes.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w != nil {
		f.failed(f.w.Flush())
	}
	if err := errors.Join(f.err, f.file.Close()); err != nil {
		return fmt.Errorf("failed to write capture file: %w", err)
	}
	return nil
}

// Captured is a frame of a capture file.
type Captured struct {
	At        time.Time
	Interface string
	Frame     []byte
	Length    int // of the frame on the wire
}

// Read reads a capture file.
func Read(r io.Reader) (frames []Captured, err error) {
	reader, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return nil, fmt.Errorf("failed to read capture file: %w", err)
	}
	for {
		frame, info, err := reader.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames, nil
		}
		if err != nil {
			return frames, fmt.Errorf("failed to read capture file: %w", err)
		}
		on, err := reader.Interface(info.InterfaceIndex)
		if err != nil {
			return frames, fmt.Errorf("failed to read capture file: %w", err)
		}
		frames = append(frames, Captured{At: info.Timestamp, Interface: on.Name, Frame: frame, Length: info.Length})
	}
}
