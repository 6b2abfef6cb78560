package observe

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Block types and options of the pcapng format (draft-ietf-opsawg-pcapng).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrderMagic = 0x1a2b3c4d
	linkEthernet   = 1
	optionName     = 2
	optionDescribe = 3
)

// SnapLen is how much of a frame is kept that is not DHCP.
const SnapLen = 512

// File is a capture file of several interfaces. It is safe for concurrent use.
type File struct {
	mu         sync.Mutex
	file       *os.File
	w          *bufio.Writer
	interfaces int
	flushed    time.Time
	err        error
}

// Create makes a capture file.
func Create(path string) (*File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("failed to create capture file: %w", err)
	}
	f := &File{file: file, w: bufio.NewWriterSize(file, 256<<10)}
	body := binary.LittleEndian.AppendUint32(nil, byteOrderMagic)
	body = binary.LittleEndian.AppendUint32(body, 1) // version 1.0
	body = binary.LittleEndian.AppendUint64(body, ^uint64(0))
	f.block(blockSection, body)
	return f, nil
}

// Interface adds an interface and returns its number.
func (f *File) Interface(name, description string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	body := binary.LittleEndian.AppendUint32(nil, linkEthernet)
	body = binary.LittleEndian.AppendUint32(body, 0) // no limit
	body = appendOption(body, optionName, name)
	body = appendOption(body, optionDescribe, description)
	body = binary.LittleEndian.AppendUint32(body, 0) // end of options
	f.block(blockInterface, body)
	f.interfaces++
	return f.interfaces - 1
}

// Packet adds a frame, of which at most snap bytes are kept.
func (f *File) Packet(at time.Time, iface int, frame []byte, snap int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := frame[:min(len(frame), snap)]
	micros := uint64(at.UnixMicro())
	body := make([]byte, 0, 20+len(kept)+3)
	for _, field := range []uint32{
		uint32(iface), uint32(micros >> 32), uint32(micros), uint32(len(kept)), uint32(len(frame)),
	} {
		body = binary.LittleEndian.AppendUint32(body, field)
	}
	f.block(blockPacket, append(body, kept...))
	if at.Sub(f.flushed) > time.Second && f.err == nil {
		f.err, f.flushed = f.w.Flush(), at
	}
}

// Close ends the file. The error is the first of all writes.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.Join(f.err, f.w.Flush(), f.file.Close())
	if err != nil {
		return fmt.Errorf("failed to write capture file: %w", err)
	}
	return nil
}

func (f *File) block(kind uint32, body []byte) {
	padding := make([]byte, -len(body)&3)
	length := uint32(12 + len(body) + len(padding))
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, kind), length)
	for _, part := range [][]byte{head, body, padding, binary.LittleEndian.AppendUint32(nil, length)} {
		if f.err == nil {
			_, f.err = f.w.Write(part)
		}
	}
}

func appendOption(b []byte, code uint16, value string) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// Captured is a frame of a capture file.
type Captured struct {
	At        time.Time
	Interface string
	Frame     []byte
	Length    int // of the frame on the wire
}

// Read reads a capture file that [Create] made.
func Read(r io.Reader) ([]Captured, error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("failed to read capture file: %w", err)
	}
	var names []string
	var frames []Captured
	for len(content) > 0 {
		if len(content) < 12 {
			return frames, errors.New("failed to parse capture file: it ends within a block")
		}
		kind, length := binary.LittleEndian.Uint32(content), int(binary.LittleEndian.Uint32(content[4:]))
		if length < 12 || length > len(content) || length%4 != 0 {
			return frames, errors.New("failed to parse capture file: it ends within a block")
		}
		body := content[8 : length-4]
		content = content[length:]
		switch kind {
		case blockInterface:
			name := ""
			if len(body) >= 12 && binary.LittleEndian.Uint16(body[8:]) == optionName {
				size := int(binary.LittleEndian.Uint16(body[10:]))
				name = string(body[12 : 12+min(size, len(body)-12)])
			}
			names = append(names, name)
		case blockPacket:
			if len(body) < 20 {
				return frames, errors.New("failed to parse capture file: a packet is too short")
			}
			iface, kept := int(binary.LittleEndian.Uint32(body)), int(binary.LittleEndian.Uint32(body[12:]))
			if iface >= len(names) || kept > len(body)-20 {
				return frames, errors.New("failed to parse capture file: a packet is wrong")
			}
			micros := uint64(binary.LittleEndian.Uint32(body[4:]))<<32 | uint64(binary.LittleEndian.Uint32(body[8:]))
			frames = append(frames, Captured{
				At: time.UnixMicro(int64(micros)), Interface: names[iface], Frame: body[20 : 20+kept],
				Length: int(binary.LittleEndian.Uint32(body[16:])),
			})
		}
	}
	return frames, nil
}
