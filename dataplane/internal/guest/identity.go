// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// identity is what tells two machines from one frozen copy apart.
type identity struct {
	SandboxID string   `json:"sandbox_id"`
	Token     string   `json:"token"`
	Hostname  string   `json:"hostname"`
	MachineID string   `json:"machine_id"`
	Seed      []byte   `json:"seed"`
	UnixNanos int64    `json:"unix_nanos"`
	Address   string   `json:"address"`
	Gateway   string   `json:"gateway"`
	MAC       string   `json:"mac"`
	Resolvers []string `json:"resolvers"`
}

// apply makes the machine what it is told to be. Random numbers come first: whatever is started
// afterwards may ask for some.
func (i identity) apply(wanted limits) error {
	steps := []func() error{
		func() error { return seedRandom(i.Seed) },
		func() error { return setClock(i.UnixNanos) },
		func() error { return unix.Sethostname([]byte(i.Hostname)) },
		func() error { return configureNetwork(i) },
		i.writeNames,
		func() error { return resizeShared(wanted.SHMBytes) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// seedRandom mixes the host's random bytes into the kernel's generator and has it use them at once.
func seedRandom(seed []byte) error {
	if len(seed) == 0 {
		return errors.New("the host sent no random bytes")
	}
	device, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	request := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	request = binary.NativeEndian.AppendUint32(request, uint32(len(seed)))
	request = append(request, seed...)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&request[0])))
	if errno != 0 {
		return fmt.Errorf("add random bytes: %w", errno)
	}
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, device.Fd(), randomReseed, 0); errno != 0 {
		return fmt.Errorf("use the new random bytes: %w", errno)
	}
	return nil
}

// randomReseed is RNDRESEEDCRNG of linux/random.h.
const randomReseed = 0x5207

func setClock(nanos int64) error {
	if nanos == 0 {
		return nil
	}
	now := unix.NsecToTimespec(nanos)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return fmt.Errorf("set the clock to %s: %w", time.Unix(0, nanos).UTC(), err)
	}
	return nil
}

func (i identity) writeNames() error {
	hosts := "127.0.0.1 localhost\n::1 localhost\n" + i.Address + " " + i.Hostname + "\n"
	resolv := ""
	for _, server := range i.Resolvers {
		resolv += "nameserver " + server + "\n"
	}
	files := map[string]string{
		"hostname": i.Hostname + "\n", "hosts": hosts, "machine-id": i.MachineID + "\n", "resolv.conf": resolv,
	}
	for name, content := range files {
		if err := replaceFile("/etc/"+name, content); err != nil {
			return fmt.Errorf("write /etc/%s: %w", name, err)
		}
	}
	return nil
}

// replaceFile also works where the image has a link to somewhere else.
func replaceFile(name, content string) error {
	if err := os.MkdirAll(name[:strings.LastIndexByte(name, '/')], 0o755); err != nil {
		return err
	}
	partial := name + ".casulo"
	if err := os.WriteFile(partial, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, name)
}

func resizeShared(bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	options := fmt.Sprintf("mode=1777,size=%d", bytes)
	if err := unix.Mount("", "/dev/shm", "", unix.MS_REMOUNT|hardened, options); err != nil {
		return fmt.Errorf("set the size of /dev/shm: %w", err)
	}
	return nil
}
