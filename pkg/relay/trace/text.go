package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Text writes the packets of a file that [Write] has written as text: when and from where to where each went, and what
// it says.
func Text(w io.Writer, pcap io.Reader) error {
	out := bufio.NewWriter(w)
	var header [24]byte
	if _, err := io.ReadFull(pcap, header[:]); err != nil {
		return fmt.Errorf("failed to read pcap header: %w", err)
	}
	if binary.LittleEndian.Uint32(header[:]) != pcapMagic {
		return errors.New("failed to read pcap header: not a file of this program")
	}
	for {
		var record [16]byte
		switch _, err := io.ReadFull(pcap, record[:]); {
		case errors.Is(err, io.EOF):
			return out.Flush()
		case err != nil:
			return fmt.Errorf("failed to read packet: %w", err)
		}
		b := make([]byte, min(binary.LittleEndian.Uint32(record[8:]), snapLen))
		if _, err := io.ReadFull(pcap, b); err != nil {
			return fmt.Errorf("failed to read packet: %w", err)
		}
		at := time.Unix(int64(binary.LittleEndian.Uint32(record[:])), int64(binary.LittleEndian.Uint32(record[4:]))*1e3)
		fmt.Fprintf(out, "%s %s\n", at.UTC().Format("15:04:05.000000"), describe(b))
	}
}

// describe says what is in a frame. All but the first line is indented, and texts of machines and servers are
// printable.
func describe(b []byte) string {
	datagram, fault := frame.Parse(b, frame.Trust)
	read := read4
	if fault == frame.NotIPv4 {
		datagram, fault = frame.Parse6(b, frame.Trust)
		read = func(b []byte) (summary, error) { return dhcpv6.FromBytes(b) }
	}
	if fault != frame.OK {
		return fmt.Sprintf("a frame of %d bytes that is no UDP", len(b))
	}
	way := datagram.Src.String() + " > " + datagram.Dst.String()
	said, err := read(datagram.Payload)
	if err != nil {
		return fmt.Sprintf("%s\n  %d bytes: %s", way, len(datagram.Payload), printable(err.Error(), 0))
	}
	return way + "\n  " + strings.ReplaceAll(printable(strings.TrimSpace(said.Summary()), '\n'), "\n", "\n  ")
}

type summary interface{ Summary() string }

// texts are the options of DHCPv4 that are text (RFC 2132, RFC 3004).
var texts = []dhcpv4.OptionCode{
	dhcpv4.OptionHostName, dhcpv4.OptionMeritDumpFile, dhcpv4.OptionDomainName, dhcpv4.OptionRootPath,
	dhcpv4.OptionExtensionsPath, dhcpv4.OptionMessage, dhcpv4.OptionClassIdentifier, dhcpv4.OptionTFTPServerName,
	dhcpv4.OptionBootfileName, dhcpv4.OptionUserClassInformation, dhcpv4.OptionReferenceToTZDatabase,
}

func read4(b []byte) (summary, error) {
	said, err := dhcpv4.FromBytes(b)
	if err != nil {
		return nil, err
	}
	said.ServerHostName, said.BootFileName = printable(said.ServerHostName, 0), printable(said.BootFileName, 0)
	for _, code := range texts {
		if text := said.Options.Get(code); text != nil {
			said.UpdateOption(dhcpv4.OptGeneric(code, []byte(printable(string(text), 0))))
		}
	}
	return said, nil
}

// printable puts question marks in the place of what is not printable, but for one character.
func printable(text string, but rune) string {
	return strings.Map(func(r rune) rune {
		if r == but || unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '?'
	}, text)
}
