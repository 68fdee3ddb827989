// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
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

// become makes the machine what it is told to be, as far as it is not that already: in emulation whatever
// runs for the first time is slow. Random numbers come first: whatever is started afterwards may ask for some.
func (m *Machine) become(next identity) error {
	if err := errors.Join(seedRandom(next.Seed), setClock(next.UnixNanos)); err != nil {
		return err
	}
	last := m.identity
	if next.Address != last.Address || next.Gateway != last.Gateway || next.MAC != last.MAC {
		if err := configureNetwork(next, last); err != nil {
			return err
		}
	}
	if next.Hostname != last.Hostname {
		if err := unix.Sethostname([]byte(next.Hostname)); err != nil {
			return err
		}
	}
	if err := m.names.write(next, last); err != nil {
		return err
	}
	m.identity = next
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
