// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Command load is both ends of a measurement of the vault: a server that insists on a credential, and
// clients that ask it again and again over kept connections. Both do as little as they can, since they
// run on the same machine as what is measured.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

func main() {
	serves := flag.String("serve", "", "address to serve at")
	pair := flag.String("pair", "", "file with certificate and key of the server")
	insists := flag.String("insist", "", "a line that every request must have")
	to := flag.String("to", "", "address to connect to")
	name := flag.String("name", "", "name to ask for")
	roots := flag.String("roots", "", "file with the certificates to trust")
	says := flag.String("say", "", "a line to send with every request")
	connections := flag.Int("connections", 1, "")
	seconds := flag.Float64("seconds", 1, "")
	flag.Parse()
	var err error
	if *serves != "" {
		err = serve(*serves, *pair, []byte(*insists))
	} else {
		err = drive(*to, *name, *roots, *says, *connections, time.Duration(*seconds*float64(time.Second)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address, pair string, insists []byte) error {
	certificate, err := tls.LoadX509KeyPair(pair, pair)
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	fmt.Println("serving")
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		go answer(c, insists)
	}
}

func answer(c io.ReadWriteCloser, insists []byte) {
	defer c.Close()
	var head []byte
	buffer := make([]byte, 4096)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		head = append(head, buffer[:n]...)
		if !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			continue
		}
		status := "200 OK"
		if !bytes.Contains(head, insists) {
			status = "401 Unauthorized"
		}
		head = head[:0]
		if _, err := io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"); err != nil {
			return
		}
	}
}

// told is what drive prints.
type told struct {
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Best     float64 `json:"best_ms"`
}

func drive(to, name, roots, says string, connections int, length time.Duration) error {
	text, err := os.ReadFile(roots)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	if says != "" {
		says += "\r\n"
	}
	request := []byte("GET /v1/models HTTP/1.1\r\nHost: " + name + "\r\n" + says + "User-Agent: load\r\nAccept: */*\r\n\r\n")
	var all sync.WaitGroup
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	sum := told{}
	begun := time.Now()
	for range connections {
		all.Go(func() {
			took, wrong, err := ask(to, request, &tls.Config{RootCAs: pool, ServerName: name}, length)
			mu.Lock()
			defer mu.Unlock()
			times, sum.Failed, failed = append(times, took...), sum.Failed+wrong, errors.Join(failed, err)
		})
	}
	all.Wait()
	if failed != nil || len(times) == 0 {
		return errors.Join(failed, errors.New("nothing was measured"))
	}
	slices.Sort(times)
	milliseconds := func(share float64) float64 { return times[int(share*float64(len(times)-1))].Seconds() * 1000 }
	sum.Requests, sum.Seconds = len(times), time.Since(begun).Seconds()
	sum.P50, sum.P99, sum.Best = milliseconds(0.5), milliseconds(0.99), milliseconds(0)
	return json.NewEncoder(os.Stdout).Encode(sum)
}

// ask is one connection's requests; the first ones warm it up.
func ask(to string, request []byte, config *tls.Config, length time.Duration) (times []time.Duration, wrong int, err error) {
	c, err := tls.Dial("tcp", to, config)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	reader := bufio.NewReader(c)
	ends := time.Now().Add(length)
	for i := 0; time.Now().Before(ends); i++ {
		begun := time.Now()
		if _, err := c.Write(request); err != nil {
			return times, wrong, err
		}
		got, err := http.ReadResponse(reader, nil)
		if err != nil {
			return times, wrong, err
		}
		if _, err := io.Copy(io.Discard, got.Body); err != nil {
			return times, wrong, err
		}
		if got.StatusCode != http.StatusOK {
			wrong++
		}
		if i > 5 {
			times = append(times, time.Since(begun))
		}
	}
	return times, wrong, nil
}
