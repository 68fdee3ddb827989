// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package resolve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/egress/sandbox"
)

const (
	workers       = 4096 // questions that are answered at once, of all sandboxes; each has a share
	streams       = 4096 // TCP connections, likewise
	idleTime      = 10 * time.Second
	smallest      = 512
	largest       = 4096
	largestStream = 65535
)

// Server answers over UDP and TCP. To whom a question belongs is told by the interface on which it
// came.
type Server struct {
	resolver *Resolver
	registry *sandbox.Registry
	slots    chan struct{}
	streams  chan struct{}
}

// NewServer answers the sandboxes of a registry.
func NewServer(resolver *Resolver, registry *sandbox.Registry) *Server {
	return &Server{resolver, registry, make(chan struct{}, workers), make(chan struct{}, streams)}
}

// ServeUDP returns when the socket is closed.
func (s *Server) ServeUDP(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}); err != nil || failed != nil {
		return fmt.Errorf("IP_PKTINFO: %w", errors.Join(err, failed))
	}
	buffer, control := make([]byte, largestStream), make([]byte, 256)
	for {
		n, controlled, _, from, err := conn.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			log.Printf("event=dns_read_failed error=%q", err)
			continue
		}
		index, reply := arrival(control[:controlled])
		box := s.registry.Sends(index, from.Addr())
		if box == nil {
			continue
		}
		query := new(dns.Msg)
		if query.Unpack(buffer[:n]) != nil {
			continue
		}
		if !box.BeginQuestion() {
			continue // as if all were busy
		}
		select {
		case s.slots <- struct{}{}:
			go func() {
				defer func() { <-s.slots; box.EndQuestion() }()
				if packed := s.answer(box, query, sizeFor(query)); packed != nil {
					_, _, _ = conn.WriteMsgUDPAddrPort(packed, reply, from)
				}
			}()
		default: // too busy: the client asks again
			box.EndQuestion()
		}
	}
}

// arrival reads on which interface a packet came, and how the reply leaves from the same address.
func arrival(control []byte) (index int, reply []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, nil
	}
	for _, message := range messages {
		if message.Header.Level == unix.IPPROTO_IP && message.Header.Type == unix.IP_PKTINFO && len(message.Data) >= unix.SizeofInet4Pktinfo {
			info := unix.Inet4Pktinfo{Ifindex: int32(binary.NativeEndian.Uint32(message.Data))}
			copy(info.Spec_dst[:], message.Data[4:8])
			return int(info.Ifindex), unix.PktInfo4(&info)
		}
	}
	return 0, nil
}

func sizeFor(query *dns.Msg) int {
	if options := query.IsEdns0(); options != nil {
		return min(max(int(options.UDPSize()), smallest), largest)
	}
	return smallest
}

func (s *Server) answer(box *sandbox.Sandbox, query *dns.Msg, size int) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), totalTime)
	defer cancel()
	reply := s.resolver.Answer(ctx, box, query)
	if reply == nil {
		return nil
	}
	if query.IsEdns0() != nil {
		reply.SetEdns0(largest, false)
	}
	reply.Compress = true
	reply.Truncate(size)
	packed, err := reply.Pack()
	if err != nil {
		log.Printf("event=dns_pack_failed error=%q", err)
		return nil
	}
	return packed
}

// ServeTCP returns when the listener is closed.
func (s *Server) ServeTCP(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			log.Printf("event=dns_accept_failed error=%q", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case s.streams <- struct{}{}:
			go func() {
				defer func() { <-s.streams }()
				s.stream(conn)
			}()
		default:
			_ = conn.Close()
		}
	}
}

// stream answers the questions of one connection in their order.
func (s *Server) stream(conn net.Conn) {
	defer conn.Close()
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	box := s.registry.At(from)
	if box == nil || !box.BeginStream() {
		return
	}
	defer box.EndStream()
	wire := &dns.Conn{Conn: conn}
	for {
		_ = conn.SetDeadline(time.Now().Add(idleTime))
		query, err := wire.ReadMsg()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = conn.(*net.TCPConn).SetLinger(0)
			}
			return
		}
		packed := s.answer(box, query, largestStream)
		if packed == nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(idleTime))
		if _, err := wire.Write(packed); err != nil {
			return
		}
	}
}
