package server

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

// MessageDir returns the directory in which the embedded server in dir stores the messages of a stream.
func MessageDir(dir, stream string) string { return filepath.Join(streamsDir(dir), stream, "msgs") }

// SingleDir returns the directory to which Open moves the store of a single server in dir when it becomes a server of a cluster.
func SingleDir(dir string) string { return filepath.Join(dir, "single") }

// streamsDir returns the directory in which the embedded server stores streams, each in a directory of its name.
func streamsDir(dir string) string {
	return filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams")
}

// metaDir returns the directory in which a server of a cluster stores the state of the cluster.
func metaDir(dir string) string {
	return filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_SYSTEM_ACCOUNT, "_js_", "_meta_")
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// moveSingle moves the store of a single server to SingleDir, because a server of a cluster removes streams that the
// cluster does not have. The move is atomic.
func moveSingle(dir string) error {
	ofCluster, err := exists(metaDir(dir))
	if err != nil || ofCluster {
		return err
	}
	streams, err := directories(streamsDir(dir))
	if err != nil || len(streams) == 0 {
		return err
	}
	to := SingleDir(dir)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, server.JetStreamStoreDir), filepath.Join(to, server.JetStreamStoreDir))
}

// repair removes files that make the embedded server refuse a stream or a consumer in dir: the remains of a process that
// was killed while it created, changed or deleted one. The server writes each file atomically, but metadata and its
// checksum one after the other.
func repair(dir string, logger logr.Logger) error {
	streams := streamsDir(dir)
	entries, err := directories(streams)
	if err != nil {
		return err
	}
	for _, name := range entries {
		stream := filepath.Join(streams, name)
		if err := repairStream(stream, name, logger); err != nil {
			return err
		}
		consumers, err := directories(filepath.Join(stream, "obs"))
		if err != nil {
			return err
		}
		for _, consumer := range consumers {
			if err := repairConsumer(filepath.Join(stream, "obs", consumer), logger); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairStream removes incomplete metadata. The stream's next user creates it again, and the server then finds its
// messages and consumers.
func repairStream(dir, name string, logger logr.Logger) error {
	metadata, sum, err := readMetadata(dir)
	switch {
	case err != nil:
		return err
	case metadata == nil && sum != nil:
		// Deletion begins with the metadata.
		logger.Info("Removing the remains of a deleted stream", "directory", dir)
		return os.RemoveAll(dir)
	case metadata == nil:
		return nil
	}
	key := sha256.Sum256([]byte(name))
	hash, err := highwayhash.New64(key[:])
	if err != nil {
		return err
	}
	hash.Write(metadata)
	if len(metadata) > 0 && hex.EncodeToString(hash.Sum(nil)) == string(sum) {
		return nil
	}
	logger.Info("Removing incomplete metadata of a stream, which is created again", "directory", dir)
	// The metadata is removed last: a checksum alone stands for a stream that is being deleted.
	if err := remove(filepath.Join(dir, server.JetStreamMetaFileSum)); err != nil {
		return err
	}
	return remove(filepath.Join(dir, server.JetStreamMetaFile))
}

// repairConsumer removes a consumer whose metadata is incomplete. It is created again when its queue is consumed, and only
// loses the number of attempts of its segments.
func repairConsumer(dir string, logger logr.Logger) error {
	metadata, sum, err := readMetadata(dir)
	if err != nil || json.Valid(metadata) && len(sum) > 0 {
		return err
	}
	logger.Info("Removing a consumer with incomplete metadata, which is created again", "directory", dir)
	return os.RemoveAll(dir)
}

// readMetadata returns the metadata in a directory, and its checksum; nil for a file that does not exist.
func readMetadata(dir string) (metadata, sum []byte, err error) {
	if metadata, err = read(filepath.Join(dir, server.JetStreamMetaFile)); err != nil {
		return nil, nil, err
	}
	sum, err = read(filepath.Join(dir, server.JetStreamMetaFileSum))
	return metadata, sum, err
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

// directories returns the names of the directories in dir, none if it does not exist. Names with a leading dot are
// omitted: the server is about to remove these.
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
