// Command action is what the images of a workflow's actions hold: "image2disk" writes the image of a disk, as the
// hub's action of this name does with an image that is not compressed; "reboot" asks HookOS to restart the machine.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	do := map[string]func() error{"image2disk": write, "reboot": reboot}
	if len(os.Args) != 2 || do[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: action image2disk|reboot")
		os.Exit(2)
	}
	if err := do[os.Args[1]](); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// write copies IMG_URL to DEST_DISK.
func write() error {
	url, disk := os.Getenv("IMG_URL"), os.Getenv("DEST_DISK")
	response, err := http.Get(url) //nolint:gosec // the workflow names it
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	file, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("failed to open disk: %w", err)
	}
	n, err := io.Copy(file, response.Body)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("failed to write disk after %d bytes: %w", n, err)
	}
	fmt.Printf("%d bytes of %s are on %s\n", n, url, disk)
	return nil
}

func reboot() error { return os.WriteFile("/worker/reboot", nil, 0o644) }
