package eventlog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"
	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// streamsDir is where the embedded server keeps streams, each in a directory of its name.
func streamsDir(dir string) string {
	return filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams")
}

// mend takes away what would have the embedded server refuse a stream or a consumer in dir for good: what is left
// where a process was killed while it created, changed or deleted one. The server writes each file as a whole, but a
// description and its checksum one after the other.
func mend(dir string, logger logr.Logger) error {
	streams := streamsDir(dir)
	entries, err := directories(streams)
	if err != nil {
		return err
	}
	for _, name := range entries {
		stream := filepath.Join(streams, name)
		if err := mendStream(stream, name, logger); err != nil {
			return err
		}
		consumers, err := directories(filepath.Join(stream, "obs"))
		if err != nil {
			return err
		}
		for _, consumer := range consumers {
			if err := mendConsumer(filepath.Join(stream, "obs", consumer), logger); err != nil {
				return err
			}
		}
	}
	return nil
}

// mendStream removes a description that is not whole. The stream is created again by whoever needs it, and the server
// finds its messages and consumers then.
func mendStream(dir, name string, logger logr.Logger) error {
	description, sum, err := readMeta(dir)
	switch {
	case err != nil:
		return err
	case description == nil && sum != nil:
		// Deleting begins with the description.
		logger.Info("The rest of a deleted stream is removed", "directory", dir)
		return os.RemoveAll(dir)
	case description == nil:
		return nil
	}
	key := sha256.Sum256([]byte(name))
	hash, err := highwayhash.New64(key[:])
	if err != nil {
		return err
	}
	hash.Write(description)
	if len(description) > 0 && hex.EncodeToString(hash.Sum(nil)) == string(sum) {
		return nil
	}
	logger.Info("A stream that was not described to the end is created again", "directory", dir)
	// The description goes last: a checksum alone stands for a stream that is being deleted.
	if err := remove(filepath.Join(dir, server.JetStreamMetaFileSum)); err != nil {
		return err
	}
	return remove(filepath.Join(dir, server.JetStreamMetaFile))
}

// mendConsumer removes a consumer whose description is not whole. It is created again when its queue is consumed; only
// how often its frames were handed over is forgotten.
func mendConsumer(dir string, logger logr.Logger) error {
	description, sum, err := readMeta(dir)
	if err != nil || json.Valid(description) && len(sum) > 0 {
		return err
	}
	logger.Info("A consumer that was not described to the end is created again", "directory", dir)
	return os.RemoveAll(dir)
}

// readMeta returns the description in a directory, and its checksum; nil for a file that is not there.
func readMeta(dir string) (description, sum []byte, err error) {
	if description, err = read(filepath.Join(dir, server.JetStreamMetaFile)); err != nil {
		return nil, nil, err
	}
	sum, err = read(filepath.Join(dir, server.JetStreamMetaFileSum))
	return description, sum, err
}

func read(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// directories returns the names of those in a directory, none if it is not there. Those that the server is about to
// remove begin with a dot, and are left out.
func directories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
