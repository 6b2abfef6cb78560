package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"unicode/utf16"
)

// GUIDs in the byte order of UEFI.
var (
	variableStore = []byte{
		0x78, 0x2c, 0xf3, 0xaa, 0x7b, 0x94, 0x9a, 0x43,
		0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92,
	}
	certX509 = []byte{ // EFI_CERT_X509_GUID
		0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a,
		0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
	}
	globalVariable = []byte{
		0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11,
		0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
	}
)

// Boot entries of UEFI (section 3.1.3), and where their card is: slot 2 of the root bridge.
const (
	loadOptionActive = 1
	nicSlot          = 2
)

// httpBoot6 is the boot entry of OVMF's HTTP boot by IPv6 for the card: firmware makes one of its own too, after those
// of IPv4, each of which waits for a minute. The path is as the driver makes it: PciRoot(0)/Pci(2,0)/MAC/IPv6/Uri.
func httpBoot6(mac net.HardwareAddr) []byte {
	path := []byte{2, 1, 12, 0, 0xd0, 0x41, 0x03, 0x0a, 0, 0, 0, 0} // PciRoot(0), section 10.3.3
	path = append(path, 1, 1, 6, 0, 0, nicSlot)                     // Pci, 10.3.2
	path = append(path, 3, 11, 37, 0)                               // MAC, 10.3.4.11
	path = append(path, mac...)
	path = append(path, make([]byte, 32-len(mac))...)
	path = append(path, 1)                          // Ethernet
	ip := []byte{0: 3, 1: 13, 2: 60, 43: 64, 59: 0} // IPv6, 10.3.4.13: all zero but for the prefix's length
	path = append(path, ip...)
	path = append(path, 3, 24, 4, 0)      // Uri, 10.3.4.22
	path = append(path, 0x7f, 0xff, 4, 0) // the end
	option := binary.LittleEndian.AppendUint32(nil, loadOptionActive)
	option = binary.LittleEndian.AppendUint16(option, uint16(len(path)))
	option = append(option, utf16z("HTTPv6")...)
	return append(option, path...)
}

// setVariables adds variables of UEFI's own to a copy of OVMF_VARS, which has none.
func setVariables(file string, names []string, values [][]byte) error {
	store, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	at := bytes.Index(store, variableStore)
	if at < 0 {
		return fmt.Errorf("failed to find variables in %s", file)
	}
	const storeHeader, attributes = 28, 7 // kept; for boot services; for the system
	at += storeHeader
	var added []byte
	for i, name := range names {
		text := utf16z(name)
		added = append(added, 0xaa, 0x55, 0x3f, 0) // the mark of a variable that is there
		added = binary.LittleEndian.AppendUint32(added, attributes)
		added = append(added, make([]byte, 8+16+4)...) // not authenticated: no count, time and key
		added = binary.LittleEndian.AppendUint32(added, uint32(len(text)))
		added = binary.LittleEndian.AppendUint32(added, uint32(len(values[i])))
		added = append(append(append(added, globalVariable...), text...), values[i]...)
		for len(added)%4 != 0 {
			added = append(added, 0xff)
		}
	}
	if at+len(added) > len(store) || bytes.Count(store[at:at+len(added)], []byte{0xff}) != len(added) {
		return errors.New("failed to add variables: the store is not empty")
	}
	copy(store[at:], added)
	return os.WriteFile(file, store, 0o644)
}

func utf16z(text string) []byte {
	var b []byte
	for _, unit := range append(utf16.Encode([]rune(text)), 0) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}

// writeAuthorities makes an EFI_SIGNATURE_LIST (UEFI, section 32.4.1) of one authority.
func writeAuthorities(to, authority string) error {
	der, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	const header, owner = 16 + 3*4, 16
	list := binary.LittleEndian.AppendUint32(bytes.Clone(certX509), uint32(header+owner+len(der)))
	list = binary.LittleEndian.AppendUint32(list, 0) // no header of the type
	list = binary.LittleEndian.AppendUint32(list, uint32(owner+len(der)))
	return os.WriteFile(to, slices.Concat(list, make([]byte, owner), der), 0o644)
}
