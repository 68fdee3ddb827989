// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Package packetlog reads what the packet filter reports of packets that it denied.
package packetlog

import (
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"
	"os"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"casulo.dev/dataplane/internal/egress/audit"
	"casulo.dev/dataplane/internal/egress/policy"
	"casulo.dev/dataplane/internal/egress/sandbox"
)

// Numbers of nfnetlink_log, which x/sys does not name.
const (
	messageConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	configCommand   = 1
	configMode      = 2
	configThreshold = 5
	commandBind     = 1
	copyPacket      = 2

	attributeInterface = 4
	attributePayload   = 9
	attributePrefix    = 10

	copied   = 64
	received = 1 << 20
)

// Reader is one group of the packet log.
type Reader struct {
	conn     *netlink.Conn
	registry *sandbox.Registry
	audit    *audit.Log
}

// Open binds the group.
func Open(group int, registry *sandbox.Registry, log *audit.Log) (*Reader, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	r := &Reader{conn, registry, log}
	mode := binary.BigEndian.AppendUint32(nil, copied)
	attributes := []netlink.Attribute{
		{Type: configCommand, Data: []byte{commandBind}},
		{Type: configMode, Data: append(mode, copyPacket, 0)},
		{Type: configThreshold, Data: binary.BigEndian.AppendUint32(nil, 1)},
	}
	for _, each := range attributes {
		if err := r.configure(group, each); err != nil {
			return nil, fmt.Errorf("packet log group %d: %w", group, err)
		}
	}
	_ = conn.SetReadBuffer(received)
	return r, nil
}

func (r *Reader) configure(group int, attribute netlink.Attribute) error {
	data, err := netlink.MarshalAttributes([]netlink.Attribute{attribute})
	if err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, uint16(group))
	_, err = r.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: messageConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(head, data...),
	})
	return err
}

// Serve returns when the reader is closed.
func (r *Reader) Serve() error {
	for {
		messages, err := r.conn.Receive()
		if isClosed(err) {
			return nil
		}
		if err != nil { // the kernel had more to tell than there was room for
			log.Printf("event=packet_log_lost error=%q", err)
			continue
		}
		for _, message := range messages {
			r.read(message)
		}
	}
}

func isClosed(err error) bool {
	return err != nil && (strings.Contains(err.Error(), os.ErrClosed.Error()) || strings.Contains(err.Error(), "bad file descriptor"))
}

// Close ends Serve.
func (r *Reader) Close() error { return r.conn.Close() }

func (r *Reader) read(message netlink.Message) {
	if len(message.Data) < 4 {
		return
	}
	decoder, err := netlink.NewAttributeDecoder(message.Data[4:])
	if err != nil {
		return
	}
	decoder.ByteOrder = binary.BigEndian
	index, prefix, payload := 0, "", []byte(nil)
	for decoder.Next() {
		switch decoder.Type() {
		case attributeInterface:
			index = int(decoder.Uint32())
		case attributePayload:
			payload = decoder.Bytes()
		case attributePrefix:
			prefix = strings.TrimRight(decoder.String(), "\x00 ")
		}
	}
	if box := r.registry.On(index); box != nil && decoder.Err() == nil {
		r.note(box, prefix, payload)
	}
}

var reasons = map[string]string{
	"ipv6":      "sandboxes have no IPv6",
	"flows":     "too many flows at once",
	"multicast": "multicast goes nowhere",
	"spoofed":   "the source address is not the sandbox's own",
	"host":      "this is an address of the host itself",
	"tcp":       "no allowed name resolved to this address, and no rule allows it",
	"default":   "no rule allows it",
}

func (r *Reader) note(box *sandbox.Sandbox, prefix string, payload []byte) {
	q := parse(payload)
	record := audit.Record{Sandbox: box.ID, Kind: "packet", Decision: "deny", Port: q.Port,
		Protocol: string(q.Protocol), Rule: "packet filter", Reason: reasons[prefix]}
	if q.Address.IsValid() {
		record.Address = q.Address.String()
	}
	if prefix == "tcp" || prefix == "default" {
		if decided := box.Decide(q); !decided.Allow {
			record = record.Judged(decided)
		}
	}
	if prefix == "tcp" && record.Rule == "default deny" {
		record.Reason = reasons["tcp"]
	}
	r.audit.Write(record)
}

// parse reads destination, protocol and port of an IP packet.
func parse(packet []byte) policy.Query {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		length := int(packet[0]&15) * 4
		q := policy.Query{Address: netip.AddrFrom4([4]byte(packet[16:20]))}
		transport(&q, packet[9], packet[min(length, len(packet)):])
		return q
	case len(packet) >= 40 && packet[0]>>4 == 6:
		q := policy.Query{Address: netip.AddrFrom16([16]byte(packet[24:40]))}
		transport(&q, packet[6], packet[40:])
		return q
	}
	return policy.Query{}
}

func transport(q *policy.Query, number byte, rest []byte) {
	switch number {
	case unix.IPPROTO_TCP:
		q.Protocol = policy.TCP
	case unix.IPPROTO_UDP:
		q.Protocol = policy.UDP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		q.Protocol = policy.ICMP
		return
	default:
		q.Protocol = policy.Protocol(fmt.Sprintf("ip/%d", number))
		return
	}
	if len(rest) >= 4 {
		q.Port = binary.BigEndian.Uint16(rest[2:])
	}
}
